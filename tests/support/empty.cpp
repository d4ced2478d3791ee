// A target needs a source to own the precompiled header.
