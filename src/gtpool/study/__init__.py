"""One run and many: from specs to stored rows."""
