"""What several methods are built of: a draft model beside the target, and texts to look up in."""
