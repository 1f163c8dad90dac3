"""What a directory survives: real files, damaged as disks and people damage them."""
