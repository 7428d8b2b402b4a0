//! Configuration files of the Slurm integration: `vipu.conf`, `<model>.conf`, the host map `ipum.allocs`,
//! the GRES of node lines, and license lists.
//!
//! [`SlurmConf`] reads `slurm.conf` as Slurm does. The other parsers take a text and the file name for
//! messages. None reads a file, and all errors are returned at once.
//!
//! ```
//! use ipu_slurm::conf::ConfFiles;
//!
//! let text = "ApiHost=ipu-pod64-001\nIpuofDir=/home/ipuof\nMaxIpusPerJob=64\n";
//! let files = ConfFiles::parse(("vipu.conf", text), &[("pod64", text)])?;
//! assert_eq!(files.model("pod64").unwrap().api_address(), "ipu-pod64-001:8090");
//!
//! let errors = ConfFiles::parse(("vipu.conf", "ApiHots=a\n"), &[]).unwrap_err();
//! assert_eq!(
//!     errors[0].to_string(),
//!     "vipu.conf:1:1: ApiHots = a: is not a known key; did you mean ApiHost?",
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod cluster;
mod command;
mod error;
mod files;
mod host_list;
mod host_map;
mod key;
mod licenses;
mod logical_line;
mod node_gres;
mod settings;
mod similar;
mod slurm_conf;
mod span;
mod url;
mod values;

pub use cluster::{AllocationCommands, ClusterConf, ModelConf};
pub use command::CommandTemplate;
pub use error::ConfError;
pub(crate) use error::at_beginning;
pub use files::ConfFiles;
pub use host_list::expand_nodes;
pub use host_map::HostMap;
pub(crate) use licenses::with_count;
pub use licenses::{License, LicenseList};
pub use node_gres::{NodeGres, NodeGresList, VipuGres};
pub(crate) use similar::closest;
pub use slurm_conf::{IncludeSource, SlurmConf, SlurmLine, SlurmSetting};
