//! What can be wrong with a problem or with an allocation, in words.

use thiserror::Error;

/// Why a problem can't be posed.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum ProblemError {
    /// A negative, not finite or absurd horizon.
    #[error("the horizon of {0} s is not a number of seconds from 0 to {MAX_SECONDS}")]
    BadHorizon(f64),
    /// A negative, not finite or absurd scale-up or scale-down cost.
    #[error(
        "trainer {trainer}: a scale cost of {cost_s} s is not a number from 0 to {MAX_SECONDS}"
    )]
    BadCost {
        /// Index of the trainer.
        trainer: usize,
        /// The cost given.
        cost_s: f64,
    },
    /// A speed factor that is negative, not finite or absurd.
    #[error("trainer {trainer}: the speed factor {speed} is not a number from 0 to {MAX_SPEED}")]
    BadSpeed {
        /// Index of the trainer.
        trainer: usize,
        /// The factor given.
        speed: f64,
    },
    /// Nodes held in a class, or speed factors for classes, that the problem does not have.
    #[error("trainer {trainer} names class {class}; there are {classes} classes")]
    UnknownClass {
        /// Index of the trainer.
        trainer: usize,
        /// The class named.
        class: usize,
        /// How many there are.
        classes: usize,
    },
    /// A cap on a trainer that the problem does not have.
    #[error("cap {cap} names trainer {trainer}; there are {trainers} trainers")]
    UnknownTrainer {
        /// Index of the cap.
        cap: usize,
        /// The trainer named.
        trainer: usize,
        /// How many there are.
        trainers: usize,
    },
    /// More trainers times nodes than fits in memory.
    #[error("{trainers} trainers on {nodes} usable nodes are too many for one decision")]
    TooLarge {
        /// Number of trainers.
        trainers: usize,
        /// Pool, or sum of the maxima if that is less.
        nodes: u64,
    },
}

/// Longest time that is taken seriously, seconds; values stay finite.
pub const MAX_SECONDS: f64 = 1e12;

/// Largest speed factor that is taken seriously.
pub const MAX_SPEED: f64 = 1e6;

/// Why an allocation is not allowed.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum Infeasible {
    /// Not one share per trainer.
    #[error("an allocation of {shares} counts is given for {trainers} trainers")]
    WrongLength {
        /// Shares given.
        shares: usize,
        /// Trainers in the problem.
        trainers: usize,
    },
    /// A count that is neither 0 nor within the trainer's bounds.
    #[error("trainer {trainer} is given {nodes} nodes; allowed are 0 and {min} to {max}")]
    BadCount {
        /// Index of the trainer.
        trainer: usize,
        /// Nodes given.
        nodes: u32,
        /// Its fewest nodes.
        min: u32,
        /// Its most nodes.
        max: u32,
    },
    /// Nodes of a class that the trainer may not use.
    #[error("trainer {trainer} is given nodes of class {class}, which it may not use")]
    BadClass {
        /// Index of the trainer.
        trainer: usize,
        /// Index of the class.
        class: usize,
    },
    /// More nodes than a class has.
    #[error("{given} nodes of class {class} are given away; it has {nodes}")]
    ClassExceeded {
        /// Index of the class.
        class: usize,
        /// Nodes given in all.
        given: u64,
        /// Nodes there are.
        nodes: u32,
    },
    /// More nodes than a cap allows.
    #[error("{given} nodes are given to the trainers of cap {cap}; it allows {max_nodes}")]
    CapExceeded {
        /// Index of the cap.
        cap: usize,
        /// Nodes given in all.
        given: u64,
        /// Nodes it allows.
        max_nodes: u32,
    },
}
