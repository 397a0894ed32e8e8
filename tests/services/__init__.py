"""Storage services as real processes on loopback, for tests against the wire and not against a stand-in."""
