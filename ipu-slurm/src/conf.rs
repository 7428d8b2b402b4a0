//! Configuration files of the Slurm integration: `vipu.conf`, `<model>.conf`, the host map `ipum.allocs`,
//! the GRES of node lines, and license lists.
//!
//! Sources: seed 004 §8.3 (`Gres=vipu:<size>:<count>`), §8.5.2 (the seven keys and their defaults), §8.5.3
//! (`Gres=vipu:<model>:no_consume:<size>`) and §8.6 (no white space in `ipum.allocs`).
//!
//! Every parser takes a text and the file name for messages, reads no file, and returns all errors at
//! once. A rendered value parses to itself.
//!
//! ```
//! use ipu_slurm::conf::ConfFiles;
//!
//! let text = "ApiHost=ipu-pod64-001\nIpuofDir=/home/ipuof\nMaxIpusPerJob=64\n";
//! let files = ConfFiles::parse(("vipu.conf", text), &[("pod64", text)]).unwrap();
//! assert_eq!(files.model("pod64").unwrap().api_address(), "ipu-pod64-001:8090");
//!
//! let errors = ConfFiles::parse(("vipu.conf", "ApiHots=a\n"), &[]).unwrap_err();
//! assert_eq!(
//!     errors[0].to_string(),
//!     "vipu.conf:1:1: ApiHots = a: is not a known key; did you mean ApiHost?",
//! );
//! ```

mod cluster;
mod cluster_name;
mod command;
mod error;
mod files;
mod host_list;
mod host_map;
mod key;
mod licenses;
mod model;
mod node_gres;
mod settings;
mod similar;
mod span;
mod url;
mod values;

pub use cluster::{AllocationCommands, ClusterConf};
pub use cluster_name::{ClusterNameSetting, cluster_name_settings};
pub use command::CommandTemplate;
pub use error::ConfError;
pub(crate) use error::at_beginning;
pub use files::ConfFiles;
pub use host_list::expand_nodes;
pub use host_map::HostMap;
pub use licenses::{License, LicenseList};
pub use model::ModelConf;
pub use node_gres::{NodeGres, NodeGresList, VipuGres};
