//! Slurm adapter: so far, what Slurm writes about generic resources (GRES), read and printed.
//!
//! ```
//! use ipu_slurm::{Gres, GresList};
//!
//! let asked: GresList = "--gres=vipu:2:3,gpu:1".parse()?;
//! let ipus: &Gres = asked.named("vipu").next().expect("it asks for V-IPU partitions");
//! assert_eq!((ipus.kind(), ipus.count()), (Some("2"), 3));
//!
//! // The same as `scontrol -d show job` tells it of a node.
//! let given: Gres = "vipu:2(CNT:3)".parse()?;
//! assert_eq!(&given, ipus);
//! # Ok::<(), ipu_slurm::GresError>(())
//! ```

mod gres;

pub use gres::error::GresError;
pub use gres::indices::Indices;
pub use gres::list::GresList;
pub use gres::tres::{Tres, TresList};
pub use gres::{Counting, Gres};

/// The examples of the README compile and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
