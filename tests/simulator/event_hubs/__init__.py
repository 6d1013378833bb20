"""Tests of the Event Hubs broker with Azure's own SDK and with plain AMQP."""
