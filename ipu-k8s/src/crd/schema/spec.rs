//! The fields of the object, its metadata and its spec.

use ipu_core::{AccountName, AllocationId};

use super::FieldKind::{Any, Flag, Object, Objects, Scalar, Text, TextMap, Texts};
use super::{Field, FieldPresence, WireFormat, field, kubernetes_field};

/// Maximum number of workers of a job and of IPUs of an instance: the maximum of the core under any limits.
pub(in crate::crd) const MAX_COUNT: u32 = 65_536;

/// A count of at least one, as a string as in the custom resource 1.2.0, or a number.
const COUNT: WireFormat = WireFormat::Count { max: MAX_COUNT };

/// Exit codes and ranges, as in the custom resource 1.2.0.
const EXIT_CODES: &str = "^([0-9]+(-[0-9]+)?)(,([0-9]+(-[0-9]+)?))*$";

/// Fields of the whole object.
pub(in crate::crd) const IPU_JOB: &[Field] = &[
    kubernetes_field("apiVersion", Text),
    kubernetes_field("kind", Text),
    kubernetes_field("metadata", Object(METADATA)),
    field("spec", Object(SPEC), "Specification of the job. Required."),
    field("status", Any, "Observed status of the job."),
];

const METADATA: &[Field] = &[
    kubernetes_field("name", Text),
    kubernetes_field("generateName", Text),
    kubernetes_field("namespace", Text),
    kubernetes_field("uid", Text),
    kubernetes_field("labels", TextMap),
    kubernetes_field("annotations", TextMap),
    kubernetes_field("creationTimestamp", Text),
    kubernetes_field("deletionGracePeriodSeconds", Scalar),
    kubernetes_field("deletionTimestamp", Text),
    kubernetes_field("finalizers", Texts),
    kubernetes_field("generation", Scalar),
    kubernetes_field("managedFields", Objects(&[])),
    kubernetes_field("ownerReferences", Objects(&[])),
    kubernetes_field("resourceVersion", Text),
    kubernetes_field("selfLink", Text),
];

/// Fields of the spec.
pub(in crate::crd) const SPEC: &[Field] = &[
    field(
        "jobInstances",
        Scalar,
        "Instances of the job; each has its own partition, workers and, if configured, launcher. More than one is for \
         inference. 0 holds no resources. `kubectl scale` changes this field.",
    )
    .wire(WireFormat::Integer { min: 0, max: 65_536 })
    .presence(FieldPresence::Number(1)),
    field(
        "ipusPerJobInstance",
        Scalar,
        "IPUs of one instance: the size of its partition. A power of two; the installation may allow fewer than the most. \
         Required except in the alpha form. Changes only while the job holds no IPUs: suspended, or finished and cleaned up.",
    )
    .wire(WireFormat::PowerOfTwo { max: MAX_COUNT }),
    field(
        "workersPerJobInstance",
        Scalar,
        "Workers of one instance; each has its own GCD. Divides the IPUs of the instance. 1 if absent.",
    )
    .wire(COUNT),
    field(
        "workerPerJobInstance",
        Scalar,
        "Deprecated misspelling of workersPerJobInstance, which takes precedence if both are given.",
    )
    .wire(COUNT),
    field(
        "modelReplicasPerWorker",
        Scalar,
        "Model replicas in each worker; the partition is created for GCDs times this many. 1 if absent.",
    )
    .wire(COUNT),
    field(
        "modelReplicas",
        Scalar,
        "Deprecated, the alpha form: model replicas of the job. With ipusPerModelReplica it requests one instance of their \
         product; ignored if ipusPerJobInstance is given.",
    )
    .wire(COUNT),
    field(
        "ipusPerModelReplica",
        Scalar,
        "Deprecated, the alpha form: IPUs of one model replica. See modelReplicas.",
    )
    .wire(COUNT),
    field(
        "cleanPodPolicy",
        Text,
        "Resources deleted when the job has finished: None, Workers, or All. Only All releases the IPUs at once; it makes \
         the restart policy act as Never. None if absent.",
    )
    .wire(WireFormat::OneOf(&["None", "Workers", "All"])),
    field(
        "interactive",
        Object(&[field(
            "ttl",
            Scalar,
            "Duration of the session in seconds, from the time the launcher runs.",
        )
        .from(1)
        .required()]),
        "An interactive session: the launcher runs no command, and the job ends after the ttl.",
    ),
    field(
        "launcher",
        Object(LAUNCHER),
        "The process that starts processes on the workers, such as mpirun. Without a launcher the workers run their own command.",
    ),
    field(
        "restartPolicy",
        Object(RESTART_POLICY),
        "When the job is restarted. Never if absent.",
    ),
    field("workers", Object(WORKERS), "The processes that use the IPUs.").required(),
    field(
        "suspend",
        Flag,
        "Specifies whether the job is suspended: it has no processes, no partition and no queued request.",
    ),
    field(
        "managedBy",
        Text,
        "The controller that manages the job. The operator ignores jobs with another value than graphcore.ai/ipu-operator. \
         Cannot be changed.",
    ),
    field(
        "ttlSecondsAfterFinished",
        Scalar,
        "Seconds for which a finished job is kept, with the resources that its clean-up policy leaves, IPUs included; then it is deleted. \
         Kept until it is deleted if absent.",
    )
    .from(0),
    field(
        "activeDeadlineSeconds",
        Scalar,
        "Maximum running time of the job in seconds, restarts included; then it fails. No limit if absent.",
    )
    .from(1),
    field(
        "startDeadlineSeconds",
        Scalar,
        "Seconds within which all workers of a partition must be ready, and after that the launcher; otherwise the partition is \
         released and the job is queued again. 600 if absent.",
    )
    .from(1),
    field(
        "priority",
        Scalar,
        "Priority in the queue; larger values are served earlier. 0 if absent.",
    )
    .from(i32::MIN),
    field(
        "account",
        Text,
        "Account that is charged, for quotas: at most 63 printable characters without blanks, quotation marks and backslashes. The \
         namespace if absent.",
    )
    .wire(WireFormat::Token {
        max: AccountName::MAX_LEN,
    }),
    field(
        "preemptible",
        Flag,
        "True if a job of higher priority may preempt the job. A preemptible job never preempts others.",
    ),
    field(
        "reconfigurable",
        Flag,
        "Specifies whether Poplar may pick devices of any aligned size inside the partition. Not with more than 64 IPUs.",
    ),
    field(
        "allocation",
        Text,
        "The V-IPU allocation that provides the IPUs: at most 63 printable characters without blanks, quotation marks and \
         backslashes. The controller chooses if absent.",
    )
    .wire(WireFormat::Token {
        max: AllocationId::MAX_REQUESTED_LEN,
    }),
];

const LAUNCHER: &[Field] = &[
    field(
        "command",
        Texts,
        "Program and arguments, one item each. Required except for interactive jobs.",
    ),
    field("env", Objects(ENV), "Environment variables of the launcher."),
    field(
        "tcpInterface",
        Text,
        "Interfaces or subnets for MPI between the workers, such as eth0 or 10.0.0.0/16; exported as \
         OMPI_MCA_btl_tcp_if_include.",
    ),
];

const ENV: &[Field] = &[
    field("name", Text, "The name of the variable.").required(),
    field("value", Text, "The value; empty if absent."),
    field(
        "valueFrom",
        Any,
        "The source from which Kubernetes gets the value.",
    )
    .wire(WireFormat::EnvVarSource),
];

const RESTART_POLICY: &[Field] = &[
    field(
        "type",
        Text,
        "Never; OnFailure; Always, after success too; or ExitCode, after the codes of exitCodes.",
    )
    .wire(WireFormat::OneOf(&["Always", "OnFailure", "Never", "ExitCode"]))
    .required(),
    field(
        "backOffLimit",
        Scalar,
        "Maximum number of restarts after failure; those after success do not count.",
    )
    .from(0)
    .presence(FieldPresence::Number(3)),
    field(
        "exitCodes",
        Scalar,
        "Under ExitCode: the codes after which the job is restarted, such as 128-255,42. All others are permanent. Termination by \
         signal n counts as 128 + n. 128-255 if absent.",
    )
    .wire(WireFormat::Pattern(EXIT_CODES)),
    field(
        "backOffSeconds",
        Scalar,
        "Back-off in seconds before the first restart; it doubles with each further one, up to six minutes. 10 if absent.",
    )
    .from(0),
];

const WORKERS: &[Field] = &[
    field(
        "replicas",
        Scalar,
        "Workers of one instance in older manifests. If workersPerJobInstance is given too and they differ, one of \
         them must be 1 and the other takes precedence.",
    )
    .from(1)
    .presence(FieldPresence::Number(1)),
    field(
        "hostNetwork",
        Flag,
        "Specifies whether workers and launcher use the network of their host. false disables it; true has no effect. As the \
         operator is installed if absent.",
    ),
    field(
        "strategy",
        Object(STRATEGY),
        "Deprecated and ignored: the workers of an attempt are replaced together.",
    ),
    field(
        "template",
        Any,
        "The pod template of the workers. Its first container is the worker; its volumes and mounts are also the \
         launcher's.",
    )
    .wire(WireFormat::PodTemplate),
];

const STRATEGY: &[Field] = &[
    field("type", Text, "Ignored."),
    field("rollingUpdate", Object(ROLLING_UPDATE), "Ignored."),
];

const ROLLING_UPDATE: &[Field] = &[
    field("maxSurge", Scalar, "Ignored.").wire(WireFormat::NumberOrText),
    field("maxUnavailable", Scalar, "Ignored.").wire(WireFormat::NumberOrText),
];
