//! A test for each rule of several shards.
