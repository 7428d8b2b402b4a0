//! Reproducible random numbers.

/// SplitMix64: one seed gives the same numbers on every machine and in every version of this crate.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Creates the generator of `seed`.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next number, of all 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number from 0 to `end` − 1; 0 if `end` is 0.
    pub const fn below(&mut self, end: u32) -> u32 {
        if end == 0 {
            return 0;
        }
        // The remainder is smaller than `end`, so it fits.
        (self.next() % end as u64) as u32
    }

    /// Returns true in `percent` of 100 cases.
    pub const fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }

    /// Returns one of `choices`.
    ///
    /// # Panics
    ///
    /// If `choices` is empty.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        let at = self.below(u32::try_from(choices.len()).unwrap_or(u32::MAX)) as usize;
        choices.get(at).expect("choices must not be empty")
    }

    /// Splits off an independent generator, so that its use does not affect the numbers of this one.
    #[must_use]
    pub const fn split(&mut self) -> Self {
        Self(self.next())
    }
}

/// Returns a number from the environment, such as a seed.
///
/// # Panics
///
/// If `variable` is set and not a number.
pub(crate) fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    match text.parse() {
        Ok(number) => Some(number),
        Err(_) => panic!("{variable}={text}: must be a whole number"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_produces_the_numbers_of_the_published_algorithm() {
        let mut random = Random::new(1_234_567);
        let numbers = [random.next(), random.next(), random.next()];
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn a_number_is_below_its_bound() {
        let mut random = Random::new(1);
        assert!((1..1000).all(|end| random.below(end) < end));
        assert_eq!(random.below(0), 0);
    }
}
