"""What operators do to a running participant: they ask its replicas, and the trail says that an act began and ended."""
