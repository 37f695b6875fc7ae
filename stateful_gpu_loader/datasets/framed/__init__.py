"""Records that carry their lengths, as in TFRecord and RecordIO files."""
