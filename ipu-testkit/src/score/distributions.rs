//! Random numbers for traces, the same on every machine: without platform logarithms or powers, whose last
//! digits differ.

use crate::random::Random;

/// Random distributions from a seed.
pub(super) struct Distributions(Random);

impl Distributions {
    pub(super) const fn new(seed: u64) -> Self {
        Self(Random::new(seed))
    }

    /// Returns a number from 0 to 1, 1 excluded.
    fn uniform(&mut self) -> f64 {
        (self.0.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a whole number below `bound`, which must be above 0.
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.0.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns an exponentially distributed number of mean 1 by von Neumann's method: runs of falling
    /// numbers, without a logarithm.
    pub(super) fn exponential(&mut self) -> f64 {
        let mut whole = 0.0;
        loop {
            let first = self.uniform();
            let (mut last, mut length) = (first, 1_u32);
            loop {
                let next = self.uniform();
                if next >= last {
                    break;
                }
                (last, length) = (next, length + 1);
            }
            if length % 2 == 1 {
                return whole + first;
            }
            whole += 1.0;
        }
    }

    /// Returns a factor whose logarithm is approximately normal around 0, with the usual range 1/`factor` to
    /// `factor`.
    pub(super) fn around_one(&mut self, factor: f64) -> f64 {
        // The sum of twelve uniform numbers has variance 1.
        let normal = (0..12).map(|_| self.uniform()).sum::<f64>() - 6.0;
        let factor = if factor.is_finite() { factor.max(1.0) } else { 1.0 };
        power(factor, normal)
    }
}

/// Returns `base` to the power of `exponent`, -6 to 6: whole powers, and square roots for the bits of the
/// fraction.
fn power(base: f64, exponent: f64) -> f64 {
    let size = exponent.abs();
    let mut result = (0..size.floor() as u32).fold(1.0, |product, _| product * base);
    let (mut fraction, mut root) = (size.fract(), base);
    for _ in 0..30 {
        // A square root is exact to the last digit on every machine.
        root = root.sqrt();
        fraction *= 2.0;
        if fraction >= 1.0 {
            result *= root;
            fraction -= 1.0;
        }
    }
    if exponent < 0.0 { 1.0 / result } else { result }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(numbers: impl Iterator<Item = f64>, count: u32) -> f64 {
        numbers.take(count as usize).sum::<f64>() / f64::from(count)
    }

    #[test]
    fn gaps_between_arrivals_are_exponential() {
        let mut dice = Distributions::new(1);
        let gaps: Vec<f64> = (0..100_000).map(|_| dice.exponential()).collect();
        assert!((mean(gaps.iter().copied(), 100_000) - 1.0).abs() < 0.02);
        for at in [0.5_f64, 1.0, 2.0, 4.0] {
            let beyond = gaps.iter().filter(|gap| **gap > at).count() as f64 / 100_000.0;
            assert!((beyond - (-at).exp()).abs() < 0.01, "{beyond} beyond {at}");
        }
    }

    #[test]
    fn factors_have_a_median_of_one_and_two_thirds_in_their_usual_range() {
        let mut dice = Distributions::new(2);
        let factors: Vec<f64> = (0..50_000).map(|_| dice.around_one(3.0)).collect();
        let share = |range: core::ops::Range<f64>| {
            factors.iter().filter(|factor| range.contains(factor)).count() as f64 / 50_000.0
        };
        assert!((share(0.0..1.0) - 0.5).abs() < 0.01);
        assert!((share(1.0 / 3.0..3.0) - 0.683).abs() < 0.01);
        assert!((0..100).all(|_| (dice.around_one(1.0) - 1.0).abs() < 1e-12));
    }

    #[test]
    fn powers_are_those_of_the_platform_to_nine_digits() {
        for step in -60..=60 {
            let exponent = f64::from(step) / 10.0;
            let expected = 3.0_f64.powf(exponent);
            assert!(
                (power(3.0, exponent) / expected - 1.0).abs() < 1e-8,
                "3^{exponent}"
            );
        }
    }
}
