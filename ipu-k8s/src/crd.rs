//! The custom resources `IPUJob` and `IPUPartition` of `graphcore.ai/v1alpha1`; manifests that contain
//! IPUJobs, and their use outside of Kubernetes.
//!
//! ```
//! use ipu_core::job::Limits;
//! use ipu_k8s::crd::{Document, read_manifests};
//!
//! let text = "
//! apiVersion: graphcore.ai/v1alpha1
//! kind: IPUJob
//! metadata: {name: mnist, uid: u1}
//! spec:
//!   jobInstances: 1
//!   ipusPerJobInstance: '2'
//!   workers: {template: {spec: {containers: [{name: main, command: [./train.sh]}]}}}
//! ";
//! for document in read_manifests(text, &[])? {
//!     if let Document::IpuJob(manifest) = document {
//!         let parsed = manifest.parse(&Limits::default())?;
//!         assert_eq!(parsed.spec.partition().size.get(), 2);
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod check;
mod edit;
mod host;
mod ipujob;
mod ipupartition;
mod job_container;
mod manifest;
mod pod_rules;
mod rules;
mod schema;
mod spec;
mod status;

pub use self::edit::{EditError, FieldEdit};
pub use self::host::{HostContainer, HostView};
pub use self::ipupartition::{IpuPartition, IpuPartitionSpec, IpuPartitionStatus, PartitionCondition};
#[cfg(feature = "operator")]
pub(crate) use self::job_container::DEFAULT_CONTAINER;
pub use self::job_container::job_container;
pub use self::manifest::{
    Document, MAX_MANIFEST_BYTES, Manifest, ManifestError, SkippedDocument, read_manifests,
};
pub use self::spec::{
    Interactive, IpuJob, IpuJobSpec, Launcher, LauncherEnv, PodTemplate, RestartPolicy, RollingUpdate,
    Strategy, Workers,
};
pub use self::status::{
    AttemptReport, Condition, FailureReport, InstanceReport, IpuJobStatus, PhaseSeconds, PreemptionReport,
    Time, TimeError, WorkersStatus,
};

/// Maximum length in characters of a label value, of the name of a label, and of a DNS-1123 label.
pub(crate) const MAX_LABEL_LEN: usize = 63;
