"""Three commands that show on one GPU what no other machine can show; README.md says how."""
