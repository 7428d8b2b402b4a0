//! The fields of the object, of its metadata and of what it asks for.

use ipu_core::{AccountName, AllocationId};

use super::FieldKind::{Any, Flag, Object, Objects, Scalar, Text, TextMap, Texts};
use super::{Field, FieldPresence, WireFormat, field, known};

/// The most workers of a job and IPUs of an instance: what the core allows under any limits.
pub(in crate::crd) const MAX_COUNT: u32 = 65_536;

/// A count of at least one, as the custom resource 1.2.0 has it: in quotes, or bare.
const COUNT: WireFormat = WireFormat::Count { most: MAX_COUNT };

/// Exit codes and ranges of them, as the custom resource 1.2.0 has them.
const EXIT_CODES: &str = "^([0-9]+(-[0-9]+)?)(,([0-9]+(-[0-9]+)?))*$";

/// The fields of the whole object.
pub(in crate::crd) const IPU_JOB: &[Field] = &[
    known("apiVersion", Text),
    known("kind", Text),
    known("metadata", Object(METADATA)),
    field("spec", Object(SPEC), "What the job asks for. Required."),
    field("status", Any, "What is recorded of the job."),
];

const METADATA: &[Field] = &[
    known("name", Text),
    known("generateName", Text),
    known("namespace", Text),
    known("uid", Text),
    known("labels", TextMap),
    known("annotations", TextMap),
    known("creationTimestamp", Text),
    known("deletionGracePeriodSeconds", Scalar),
    known("deletionTimestamp", Text),
    known("finalizers", Texts),
    known("generation", Scalar),
    known("managedFields", Objects(&[])),
    known("ownerReferences", Objects(&[])),
    known("resourceVersion", Text),
    known("selfLink", Text),
];

/// What a job asks for.
pub(in crate::crd) const SPEC: &[Field] = &[
    field(
        "jobInstances",
        Scalar,
        "Instances of the job; each has a partition, workers and, if asked for, a launcher of its own. More than one is for \
         inference. 0 holds nothing. What `kubectl scale` changes.",
    )
    .wire(WireFormat::Integer { least: 0, most: 65_536 })
    .presence(FieldPresence::Number(1)),
    field(
        "ipusPerJobInstance",
        Scalar,
        "IPUs of one instance: the size of its partition. A power of two; the installation may allow fewer than the most. \
         Required, but for the alpha form. Changes only while the job holds no IPUs: suspended, or finished and cleaned up.",
    )
    .wire(WireFormat::PowerOfTwo { most: MAX_COUNT }),
    field(
        "workersPerJobInstance",
        Scalar,
        "Workers of one instance; each has a GCD of its own. Divides the IPUs of the instance. 1 if absent.",
    )
    .wire(COUNT),
    field(
        "workerPerJobInstance",
        Scalar,
        "Deprecated, a misspelling: read as workersPerJobInstance, which counts if both are given.",
    )
    .wire(COUNT),
    field(
        "modelReplicasPerWorker",
        Scalar,
        "Model replicas in each worker; the partition is made for GCDs times this many. 1 if absent.",
    )
    .wire(COUNT),
    field(
        "modelReplicas",
        Scalar,
        "Deprecated, the alpha form: model replicas of the job. With ipusPerModelReplica it asks for one instance of their \
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
        "What is removed when the job has finished: None, Workers, or All, which alone releases the IPUs at once and makes \
         the restart policy act as Never. None if absent.",
    )
    .wire(WireFormat::OneOf(&["None", "Workers", "All"])),
    field(
        "interactive",
        Object(&[field(
            "ttl",
            Scalar,
            "How many seconds the session lasts, counted from the launcher running.",
        )
        .from(1)
        .required()]),
        "A session for people: the launcher runs nothing by itself, and the job is over after a while.",
    ),
    field(
        "launcher",
        Object(LAUNCHER),
        "A process that starts the work on the workers, as mpirun does. Without one the workers run their own command.",
    ),
    field(
        "restartPolicy",
        Object(RESTART_POLICY),
        "When the job is tried again. Never if absent.",
    ),
    field("workers", Object(WORKERS), "The processes that use the IPUs.").required(),
    field(
        "suspend",
        Flag,
        "Whether to hold nothing for now: no processes, no partition, no place in the line.",
    ),
    field(
        "managedBy",
        Text,
        "Who looks after the job. The operator leaves alone whatever has another value than graphcore.ai/ipu-operator. \
         Cannot be changed.",
    ),
    field(
        "ttlSecondsAfterFinished",
        Scalar,
        "How many seconds a finished job stays, with what its clean-up policy leaves, IPUs included; then it is deleted. Until somebody \
         deletes it if absent.",
    )
    .from(0),
    field(
        "activeDeadlineSeconds",
        Scalar,
        "How many seconds the job may run, restarts included; then it is ended as failed. No limit if absent.",
    )
    .from(1),
    field(
        "startDeadlineSeconds",
        Scalar,
        "How many seconds a partition waits for all of its workers to be ready, and after that for the launcher; then it is \
         given back and the job waits again. 600 if absent.",
    )
    .from(1),
    field(
        "priority",
        Scalar,
        "Larger is served earlier in the waiting line. 0 if absent.",
    )
    .from(i32::MIN),
    field(
        "account",
        Text,
        "Who is charged, for quotas: at most 63 printable characters without blanks, quotation marks and backslashes. The \
         namespace if absent.",
    )
    .wire(WireFormat::Token {
        most: AccountName::MAX_LEN,
    }),
    field(
        "preemptible",
        Flag,
        "Whether a scheduler may end the job for a more urgent one.",
    ),
    field(
        "reconfigurable",
        Flag,
        "Whether Poplar may pick devices of any aligned size inside the partition. Not with more than 64 IPUs.",
    ),
    field(
        "allocation",
        Text,
        "The V-IPU allocation to draw IPUs from: at most 63 printable characters without blanks, quotation marks and \
         backslashes. The controller chooses if absent.",
    )
    .wire(WireFormat::Token {
        most: AllocationId::MAX_REQUESTED_LEN,
    }),
];

const LAUNCHER: &[Field] = &[
    field(
        "command",
        Texts,
        "Its program and arguments, one item each. Required, but for interactive jobs.",
    ),
    field("env", Objects(ENV), "Variables of its environment."),
    field(
        "tcpInterface",
        Text,
        "Interfaces or subnets for MPI between the workers, such as eth0 or 10.0.0.0/16; exported as \
         OMPI_MCA_btl_tcp_if_include.",
    ),
];

const ENV: &[Field] = &[
    field("name", Text, "The name of the variable.").required(),
    field("value", Text, "Its value; empty if absent."),
    field("valueFrom", Any, "Where Kubernetes finds the value.").wire(WireFormat::EnvVarSource),
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
        "The most restarts after failure; those after success do not count.",
    )
    .from(0)
    .presence(FieldPresence::Number(3)),
    field(
        "exitCodes",
        Scalar,
        "Under ExitCode: the codes that are worth another try, such as 128-255,42. Everything else is permanent. Death by \
         signal n counts as 128 + n. 128-255 if absent.",
    )
    .wire(WireFormat::Pattern(EXIT_CODES)),
    field(
        "backOffSeconds",
        Scalar,
        "The pause before the first restart; it doubles with each further one, up to six minutes. 10 if absent.",
    )
    .from(0),
];

const WORKERS: &[Field] = &[
    field(
        "replicas",
        Scalar,
        "Workers of one instance, as older manifests say it. If workersPerJobInstance is given too and they differ, one of \
         them is 1 and the other counts.",
    )
    .from(1)
    .presence(FieldPresence::Number(1)),
    field(
        "hostNetwork",
        Flag,
        "Whether workers and launcher are on the network of their host. false keeps them off it; true changes nothing. As the \
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
        "What a worker runs: a Kubernetes Pod template. Its first container is the worker; volumes and mounts are the \
         launcher's too.",
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
