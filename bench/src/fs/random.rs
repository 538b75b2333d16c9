//! Random numbers that are the same in each run.

/// A generator (xorshift64*).
#[derive(Debug, Clone)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        // Its state must not be 0.
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `end`, which is not 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A number above 0, at most 1.
    fn unit(&mut self) -> f64 {
        ((self.next() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// A number of the gamma distribution with shape 1.5, as filebench's sizes: the sum of an
    /// exponential variable and half the square of a normal one.
    pub(super) fn gamma(&mut self, mean: f64) -> f64 {
        let exponential = -self.unit().ln();
        let normal = (-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos();
        (exponential + normal * normal / 2.0) * mean / 1.5
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_the_mean_and_the_variance_of_their_distribution() {
        let mut random = Random::new(7);
        let sizes: Vec<f64> = (0..100_000).map(|_| random.gamma(16_384.0)).collect();
        let mean = sizes.iter().sum::<f64>() / sizes.len() as f64;
        assert!((mean / 16_384.0 - 1.0).abs() < 0.02, "{mean}");
        // The variance of a gamma distribution is its mean squared over its shape.
        let variance = sizes.iter().map(|size| (size - mean).powi(2)).sum::<f64>() / sizes.len() as f64;
        assert!((variance / (mean * mean / 1.5) - 1.0).abs() < 0.05, "{variance}");
    }
}
