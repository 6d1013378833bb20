"""Stand-ins for a person without Azure: a metadata service and an Event Hubs broker. `run` never imports them."""
