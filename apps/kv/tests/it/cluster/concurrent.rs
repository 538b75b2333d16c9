//! Several clients at a time.
