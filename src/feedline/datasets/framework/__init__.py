"""What every source is made of: fields, paths, indices, shards, streams, and what is kept."""
