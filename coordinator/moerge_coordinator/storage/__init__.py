"""Tables, blobs and folders of links."""
