//! Pools on simulated media.

mod crash;
mod faults;
mod golden;
mod life;
mod speed;
mod world;
