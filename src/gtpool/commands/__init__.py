"""What `gtpool` does, one file a group of commands; heavy imports wait inside the commands."""
