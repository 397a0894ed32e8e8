"""The merged read path: snapshot, sources, pruning, newest-wins merge, batches; point lookups."""
