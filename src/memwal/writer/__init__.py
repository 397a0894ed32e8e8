"""The write path of one shard: order of effects, group commit, backpressure, replay, flushing."""
