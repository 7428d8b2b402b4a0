//! Slurm adapter: parses and prints Slurm's generic resources (GRES).
//!
//! ```
//! use ipu_slurm::{Gres, GresList};
//!
//! let requested: GresList = "--gres=vipu:2:3,gpu:1".parse()?;
//! let ipus: &Gres = requested.named("vipu").next().expect("the list has V-IPU partitions");
//! assert_eq!((ipus.kind(), ipus.count()), (Some("2"), 3));
//!
//! // The same resource in the output of `scontrol -d show job`.
//! let allocated: Gres = "vipu:2(CNT:3)".parse()?;
//! assert_eq!(&allocated, ipus);
//! # Ok::<(), ipu_slurm::GresError>(())
//! ```

mod gres;

pub use gres::error::GresError;
pub use gres::indices::Indices;
pub use gres::list::GresList;
pub use gres::tres::{Tres, TresList};
pub use gres::{Counting, Gres};

/// Compiles and runs the examples of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
