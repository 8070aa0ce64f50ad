"""Native code of others, called by address. Its answers are checked before they are trusted."""
