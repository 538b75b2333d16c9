//! Pools on simulated media.

mod crash;
mod faults;
mod life;
mod speed;
mod world;
