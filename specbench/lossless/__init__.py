"""Evidence that drafts leave the target's output as it is: collected with torch, judged without."""
