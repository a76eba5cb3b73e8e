"""What a running server's own traffic shows about its drafts: counters go in, acceptance, alarms
and forecasts of K come out. No request is sent."""
