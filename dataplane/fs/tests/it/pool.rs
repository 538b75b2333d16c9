//! Pools on simulated media.

mod crash;
mod life;
mod world;
