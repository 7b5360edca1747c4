//! Random choices of a test, drawn from a seed, and variables that replace them.

use std::str::FromStr;

/// Returns the value of a variable, unless it is unset or empty.
pub fn asked<T: FromStr>(name: &str) -> Option<T> {
    let text = std::env::var(name).ok().filter(|text| !text.is_empty())?;
    let value = text.parse();
    Some(value.unwrap_or_else(|_| panic!("{name} is no number: {text}")))
}

/// Numbers that look random, but depend only on the seed (`SplitMix64`).
#[derive(Clone, Debug, Default)]
pub struct Dice(u64);

impl Dice {
    pub fn new(seed: u64, stream: u64) -> Self {
        let mut dice = Self(seed ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93));
        dice.next();
        dice
    }

    /// Returns the next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a whole number in this range, excluding its end.
    pub fn between(&mut self, from: i64, to: i64) -> i64 {
        let wide = u64::try_from(to - from).unwrap();
        from + i64::try_from(self.next() % wide).unwrap()
    }

    /// Returns true in this many of a hundred cases.
    pub fn chance(&mut self, percent: i64) -> bool {
        self.between(0, 100) < percent
    }

    pub fn below(&mut self, most: usize) -> usize {
        usize::try_from(self.next() % u64::try_from(most).unwrap()).unwrap()
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}
