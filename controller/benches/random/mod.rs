//! Repeatable random numbers for the benches.

/// Numbers that look random (xorshift64*, Vigna 2016), the same in every run.
pub struct Random(u64);

impl Random {
    /// A series of its own for each seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        random.real();
        random
    }

    /// In 0..1.
    pub fn real(&mut self) -> f64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// In low..high.
    pub fn between(&mut self, low: f64, high: f64) -> f64 {
        low + (high - low) * self.real()
    }

    /// In 0..limit.
    pub fn below(&mut self, limit: usize) -> usize {
        (self.real() * limit as f64) as usize
    }
}
