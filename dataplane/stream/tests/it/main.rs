//! Listeners and pollers as a program uses them, with a socket service that a test plays
//! ([`played_service`]).
#![allow(clippy::unwrap_used)] // a test that cannot go on has failed

mod fork;
mod listener;
mod played_service;
mod refused_pages;
