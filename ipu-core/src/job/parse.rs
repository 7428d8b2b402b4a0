//! Parsing of a raw job into a valid job, or into all of its violations at once. The rules are listed in
//! `docs/ipujob.md`.

use alloc::format;
use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use core::str::FromStr;
use core::time::Duration;

use serde::Serialize;

use super::error_list::ErrorList;
use super::limits::Limits;
use super::raw::{EnvVar, IntOrString, RawJob, RawLauncher, RawMetadata, RawRestartPolicy, RawSpec};
use super::violation::{Violation, Warning};
use super::{CleanPodPolicy, JobKind, JobSpec, RestartPolicy};
use crate::hardware::partition::PartitionSpec;
use crate::ids::{AccountName, AllocationId, JobKey, JobName, JobUid, NameError};
use crate::job::exit::ExitCodeSet;
use crate::units::IpuCount;

/// Maximum number of workers of a job: each needs its own IPU, and no documented system has more. It also
/// keeps every index and product of a job far from overflow.
const MAX_WORKERS: u32 = IpuCount::MAX.get();

/// Maximum length of a derived name: it becomes a host name, which is a DNS-1123 label.
const MAX_LABEL: usize = 63;

/// Length of the random end of a generated name, in characters.
const GENERATED_LEN: usize = 5;
/// Maximum length of the prefix of a generated name, in characters; the API server drops the rest.
const MAX_PREFIX_LEN: usize = 58;

/// Maximum of a count or a duration in seconds (68 years): the 32 bits of the custom resource 1.2.0.
const MAX_INTEGER: u32 = i32::MAX.unsigned_abs();

/// Default maximum number of restarts: that of the custom resource 1.2.0.
const DEFAULT_BACK_OFF_LIMIT: u32 = 3;
/// Default delay before the first restart: that of a Kubernetes Job.
const DEFAULT_BACK_OFF: Duration = Duration::from_secs(10);
/// Default time for which a partition waits for its workers: enough to pull a large image, not enough to buy
/// a node.
const DEFAULT_START_DEADLINE: Duration = Duration::from_secs(600);

/// The option of Open MPI whose absence is a documented limitation (V-IPU guide §6.11).
const BTL_TCP_IF_INCLUDE: &str = "btl_tcp_if_include";

const INSTANCES: &str = "spec.jobInstances";
const IPUS: &str = "spec.ipusPerJobInstance";
const MODEL_REPLICAS: &str = "spec.modelReplicas";
const COMMAND: &str = "spec.launcher.command";
const TCP_INTERFACE: &str = "spec.launcher.tcpInterface";
const RESTART: &str = "spec.restartPolicy.type";
const CODES: &str = "spec.restartPolicy.exitCodes";

/// A valid job, with the warnings about its fields.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ParsedJob {
    /// The job.
    pub spec: JobSpec,
    /// Warnings for the author of the job, in the order of the rules.
    pub warnings: Vec<Warning>,
}

impl RawJob {
    /// Parses and validates the job. The only way to create a [`JobSpec`].
    ///
    /// # Errors
    ///
    /// All violations that keep the job from running, or that `limits` forbid to a new job; never empty.
    ///
    /// ```
    /// use ipu_core::job::{Limits, RawJob};
    ///
    /// let mut job = RawJob::default();
    /// job.metadata.name = Some("mnist-training".into());
    /// job.metadata.assign("beb81bbe-2309-494a-9e28-2a75a704be15", "");
    /// job.spec.ipus_per_job_instance = Some(3.into());
    /// let violations = job.parse(&Limits::default()).unwrap_err();
    /// assert_eq!(
    ///     violations[0].to_string(),
    ///     "spec.ipusPerJobInstance = 3: must be a power of two from 1 to 64; use 2 or 4",
    /// );
    ///
    /// job.spec.ipus_per_job_instance = Some("4".into());
    /// assert_eq!(job.parse(&Limits::default())?.spec.partition().size.get(), 4);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn parse(&self, limits: &Limits) -> Result<ParsedJob, ErrorList<Violation>> {
        let mut parser = Parser {
            limits,
            violations: Vec::new(),
            warnings: Vec::new(),
        };
        match parser.job(self) {
            Some(spec) if parser.violations.is_empty() => Ok(ParsedJob {
                spec,
                warnings: parser.warnings,
            }),
            _ => Err(parser.violations.into()),
        }
    }
}

/// Returns the suffix of the launcher's name of instance `instance`: the documented name for the first one.
pub(super) fn launcher_suffix(instance: u32) -> String {
    match instance {
        0 => "-launcher".to_string(),
        further => format!("-launcher-{further}"),
    }
}

/// The rules, with the violations and warnings so far. A method returns `None` after a violation, and its
/// caller goes on, so that all are found.
struct Parser<'a> {
    limits: &'a Limits,
    violations: Vec<Violation>,
    warnings: Vec<Warning>,
}

/// Instances of a job, and the partition of each, with a GCD for each worker.
struct Size {
    instances: u32,
    partition: PartitionSpec,
}

impl Parser<'_> {
    fn job(&mut self, raw: &RawJob) -> Option<JobSpec> {
        let spec = &raw.spec;
        let size = self.size(spec);
        let (instances, workers) = size
            .as_ref()
            .map_or((1, 1), |size| (size.instances, size.partition.gcds));
        let key = self.key(&raw.metadata, instances, workers);
        let launcher = spec.launcher.as_ref();
        launcher.into_iter().for_each(|launcher| self.launcher(launcher));
        let shape = self.shape(spec, instances, workers);
        let clean_pod_policy = self.clean_pod_policy(spec);
        let policy = spec.restart_policy.as_ref();
        let restart = policy.map_or(Some(RestartPolicy::Never), |policy| self.restart(policy));
        let back_off = policy.and_then(|policy| policy.back_off_seconds.as_ref());
        let back_off = self.seconds("spec.restartPolicy.backOffSeconds", back_off, 0);
        let max_runtime = self.seconds(
            "spec.activeDeadlineSeconds",
            spec.active_deadline_seconds.as_ref(),
            1,
        );
        let ttl = spec.ttl_seconds_after_finished.as_ref();
        let ttl_after_finished = self.seconds("spec.ttlSecondsAfterFinished", ttl, 0);
        let start_deadline = self.seconds(
            "spec.startDeadlineSeconds",
            spec.start_deadline_seconds.as_ref(),
            1,
        );
        if clean_pod_policy == Some(CleanPodPolicy::All)
            && restart
                .as_ref()
                .is_some_and(|restart| *restart != RestartPolicy::Never)
        {
            self.warn(
                RESTART,
                policy.and_then(|policy| policy.kind.as_deref()),
                "acts as Never, because cleanPodPolicy All takes priority",
                "use another cleanPodPolicy to have restarts",
            );
        }
        let priority = spec
            .priority
            .as_ref()
            .and_then(|value| self.number("spec.priority", value, i32::MIN, i32::MAX));
        let account = spec
            .account
            .as_ref()
            .map(|account| AccountName::new(account.as_str()));
        let account = self.name("spec.account", account, "an account");
        let allocation = spec
            .allocation
            .as_ref()
            .map(|allocation| AllocationId::requested(allocation.as_str()));
        let allocation = self.name("spec.allocation", allocation, "the id of an allocation");
        let reconfigurable = spec.reconfigurable.unwrap_or(false);
        if reconfigurable
            && size
                .as_ref()
                .is_some_and(|size| size.partition.size > IpuCount::LINK_DOMAIN)
        {
            let max = IpuCount::LINK_DOMAIN;
            // V-IPU user guide, "Partitions".
            self.refuse::<()>(
                "spec.reconfigurable",
                Some("true"),
                format!(
                    "a partition of more than {max} IPUs uses GW-links, which a reconfigurable one cannot"
                ),
                "remove it, or ask for fewer IPUs",
            );
        }
        Some(JobSpec {
            key: key?,
            instances,
            partition: PartitionSpec {
                reconfigurable,
                allocation,
                ..size?.partition
            },
            workers_per_instance: workers,
            shape: shape?,
            launcher_env: launcher.map(|launcher| launcher.env.clone()).unwrap_or_default(),
            tcp_interface: launcher.and_then(|launcher| launcher.tcp_interface.clone()),
            restart: restart?,
            clean_pod_policy: clean_pod_policy?,
            back_off: back_off.unwrap_or(DEFAULT_BACK_OFF),
            suspend: spec.suspend.unwrap_or(false),
            priority: priority.unwrap_or(0),
            preemptible: spec.preemptible.unwrap_or(false),
            account: account.map(String::from),
            max_runtime,
            ttl_after_finished,
            start_deadline: start_deadline.unwrap_or(DEFAULT_START_DEADLINE),
            max_requested: self.limits.max_requested(),
        })
    }

    /// Sources: V-IPU guide §6.6 and the custom resource 1.2.0; the alpha form in the alpha guide §6.5.
    fn size(&mut self, spec: &RawSpec) -> Option<Size> {
        let instances = spec.job_instances.as_ref();
        let instances = instances.map_or(Some(1), |value| self.number(INSTANCES, value, 0, MAX_WORKERS));
        let workers = self.workers(spec);
        let ipus = self.ipus(spec);
        let (instances, (workers, source), (size, alpha_replicas)) = (instances?, workers?, ipus?);
        let ipus = size.get();
        if !ipus.is_multiple_of(workers) {
            return self.refuse(
                source,
                Some(&workers.to_string()),
                format!("each worker of an instance has a GCD of its own, and the GCDs must divide its {ipus} IPUs"),
                format!("use a power of two from 1 to {ipus}"),
            );
        }
        if u64::from(instances) * u64::from(workers) > u64::from(MAX_WORKERS) {
            return self.refuse(
                INSTANCES,
                Some(&instances.to_string()),
                format!(
                    "{instances} instances of {workers} workers exceed the limit of {MAX_WORKERS} workers"
                ),
                format!("use at most {}", MAX_WORKERS / workers),
            );
        }
        Some(Size {
            instances,
            partition: PartitionSpec {
                size,
                gcds: workers,
                replicas: self.model_replicas(spec, ipus, workers, alpha_replicas)?,
                reconfigurable: false,
                allocation: None,
            },
        })
    }

    /// Returns the workers of one instance, and the field that sets them.
    fn workers(&mut self, spec: &RawSpec) -> Option<(u32, &'static str)> {
        const WORKERS: &str = "spec.workersPerJobInstance";
        const MISSPELT: &str = "spec.workerPerJobInstance";
        const REPLICAS: &str = "spec.workers.replicas";
        let given = spec.workers_per_job_instance.as_ref();
        if let Some(value) = &spec.worker_per_job_instance {
            let (rule, fix) = match given {
                Some(_) => (
                    "is a misspelling and ignored because workersPerJobInstance is given",
                    "remove it",
                ),
                None => (
                    "is read as workersPerJobInstance",
                    "spell it workersPerJobInstance",
                ),
            };
            self.warn(MISSPELT, Some(&value.to_string()), rule, fix);
        }
        let given = given.map(|value| (value, WORKERS));
        let given = given.or(spec
            .worker_per_job_instance
            .as_ref()
            .map(|value| (value, MISSPELT)));
        let given = given.map(|(value, field)| Some((self.count(field, value)?, field)));
        let replicas = spec
            .workers
            .as_ref()
            .and_then(|workers| workers.replicas.as_ref());
        let replicas = replicas.map(|value| self.count(REPLICAS, value));
        match (given, replicas) {
            (None, None) => Some((1, WORKERS)),
            (Some(given), None) => given,
            (None, Some(replicas)) | (Some(Some((1, _))), Some(replicas)) => Some((replicas?, REPLICAS)),
            (Some(given), Some(replicas)) => {
                let ((workers, field), replicas) = (given?, replicas?);
                if replicas != 1 && replicas != workers {
                    let field = &field["spec.".len()..];
                    self.limit(
                        REPLICAS,
                        &replicas.to_string(),
                        format!("{field} sets {workers} workers for each instance and takes precedence"),
                        format!("write {workers} here too, or leave one of the two out"),
                    );
                }
                Some((workers, field))
            }
        }
    }

    /// Returns the IPUs of one instance, and its model replicas in the alpha form.
    fn ipus(&mut self, spec: &RawSpec) -> Option<(IpuCount, Option<u32>)> {
        let alpha = [
            (MODEL_REPLICAS, spec.model_replicas.as_ref()),
            ("spec.ipusPerModelReplica", spec.ipus_per_model_replica.as_ref()),
        ];
        if let Some(given) = &spec.ipus_per_job_instance {
            for (field, value) in alpha {
                if let Some(value) = value {
                    self.warn(
                        field,
                        Some(&value.to_string()),
                        "belongs to the alpha form and is ignored because ipusPerJobInstance is given",
                        "remove it, or write modelReplicasPerWorker",
                    );
                }
            }
            let value = self.whole(IPUS, given)?;
            return Some((
                self.power_of_two(IPUS, &given.to_string(), "must be", value)?,
                None,
            ));
        }
        let (replicas, each) = match alpha {
            [(_, Some(replicas)), (_, Some(each))] => {
                (self.count(alpha[0].0, replicas), self.count(alpha[1].0, each))
            }
            [(_, None), (_, None)] => {
                let rule = "every job says how many IPUs one instance needs";
                return self.refuse(IPUS, None, rule, "add ipusPerJobInstance: a power of two");
            }
            _ => {
                let rule = "the alpha form needs both modelReplicas and ipusPerModelReplica";
                return self.refuse(IPUS, None, rule, "write ipusPerJobInstance instead of either");
            }
        };
        let (replicas, each) = (replicas?, each?);
        let product = i64::from(replicas) * i64::from(each);
        let shown = format!("{replicas} × {each}");
        let rule = format!("modelReplicas × ipusPerModelReplica is {product}, and that must be");
        let size = self.power_of_two(MODEL_REPLICAS, &shown, &rule, product)?;
        self.warn(
            MODEL_REPLICAS,
            Some(&shown),
            format!("the alpha form is read as one instance of {product} IPUs"),
            format!("write jobInstances: 1 and ipusPerJobInstance: \"{product}\""),
        );
        Some((size, Some(replicas)))
    }

    fn power_of_two(&mut self, field: &str, shown: &str, rule: &str, value: i64) -> Option<IpuCount> {
        let max = self.limits.max_ipus();
        let rule = format!("{rule} a power of two from 1 to {max}");
        let size = u32::try_from(value)
            .ok()
            .and_then(|value| IpuCount::try_from(value).ok());
        match size {
            Some(size) if size > max => {
                self.limit(
                    field,
                    shown,
                    rule,
                    format!("use at most {max}, or raise the limit of this installation"),
                );
            }
            Some(_) => {}
            None => {
                let fix = match value {
                    ..=1 => "use 1".into(),
                    value if value >= i64::from(max.get()) => format!("use {max}"),
                    value => format!("use {} or {}", 1_i64 << value.ilog2(), 2_i64 << value.ilog2()),
                };
                self.refuse::<()>(field, Some(shown), rule, fix);
            }
        }
        size
    }

    /// Returns the model replicas of one instance over all of its GCDs, which PopRun compares with the
    /// partition's number.
    fn model_replicas(&mut self, spec: &RawSpec, ipus: u32, workers: u32, alpha: Option<u32>) -> Option<u32> {
        const FIELD: &str = "spec.modelReplicasPerWorker";
        let Some(given) = &spec.model_replicas_per_worker else {
            let total = alpha.unwrap_or(workers);
            if total.is_multiple_of(workers) {
                return Some(total);
            }
            self.warn(
                MODEL_REPLICAS,
                Some(&total.to_string()),
                format!("cannot be shared out evenly to {workers} workers; the partition is made for {workers} model replicas"),
                "use a multiple of the workers",
            );
            return Some(workers);
        };
        let each = self.count(FIELD, given)?;
        let total = u64::from(each) * u64::from(workers);
        let Some(total) = u32::try_from(total).ok().filter(|total| *total <= ipus) else {
            return self.refuse(
                FIELD,
                Some(&given.to_string()),
                format!("{workers} workers of {each} model replicas are {total}, and each needs one of the instance's {ipus} IPUs"),
                format!("use at most {}", ipus / workers),
            );
        };
        if !ipus.is_multiple_of(total) {
            self.warn(
                FIELD,
                Some(&given.to_string()),
                format!("{total} model replicas do not divide the instance's {ipus} IPUs, so some stay idle"),
                "use a power of two",
            );
        }
        Some(total)
    }

    fn key(&mut self, raw: &RawMetadata, instances: u32, workers: u32) -> Option<JobKey> {
        let namespace = raw.namespace.as_deref().unwrap_or("default");
        let namespace = self.name(
            "metadata.namespace",
            Some(namespace.parse()),
            "the namespace of the job",
        );
        let name = self.name(
            "metadata.name",
            raw.name.as_deref().map(JobName::from_str),
            "the name of the job",
        );
        let absent = match (&raw.name, &raw.generate_name) {
            (Some(text), prefix) => {
                if name.is_some() {
                    let prefix = prefix.as_deref().filter(|prefix| is_generated(text, prefix));
                    self.label(text, prefix, instances, workers);
                }
                None
            }
            (None, Some(prefix)) => Some((
                "a job is run under a complete name, and generateName only begins one",
                format!("add characters to {prefix:?} when the job is submitted, or give metadata.name"),
            )),
            (None, None) => Some((
                "every job has a name",
                "add metadata.name or metadata.generateName".into(),
            )),
        };
        if let Some((rule, fix)) = absent {
            self.refuse::<()>("metadata.name", None, rule, fix);
        }
        if raw.uid.is_none() {
            self.refuse::<()>(
                "metadata.uid",
                None,
                "the uid distinguishes a job from earlier ones of its name",
                "let the program that submits the job assign one",
            );
        }
        let uid = self.name(
            "metadata.uid",
            raw.uid.as_deref().map(JobUid::from_str),
            "the uid of the job",
        );
        Some(JobKey {
            namespace: namespace?,
            name: name?,
            uid: uid?,
        })
    }

    /// Checks that every name derived from `name` is a DNS-1123 label: `<job>-worker-<n>` and
    /// `<job>-launcher` (V-IPU guide §6.6). A `name` that `prefix` begins is reported as that prefix.
    fn label(&mut self, name: &str, prefix: Option<&str>, instances: u32, workers: u32) {
        let (field, shown, added) = match prefix {
            Some(prefix) => ("metadata.generateName", prefix, GENERATED_LEN),
            None => ("metadata.name", name, 0),
        };
        let is_valid = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if !name.starts_with(|c: char| c.is_ascii_alphanumeric()) || !name.chars().all(is_valid) {
            let valid = |c: char| {
                if c.is_ascii_alphanumeric() {
                    c.to_ascii_lowercase()
                } else {
                    '-'
                }
            };
            let similar: String = shown.chars().take(MAX_LABEL).map(valid).collect();
            let similar = match similar.trim_matches('-') {
                "" => "my-job",
                similar => similar,
            };
            self.limit(
                field,
                shown,
                "must be lower-case letters, digits and '-', beginning with a letter or digit (DNS-1123), because host names are derived from it".into(),
                format!("use {similar}, for example"),
            );
        }
        let last = u64::from(instances) * u64::from(workers);
        let worker = format!("-worker-{}", last.saturating_sub(1));
        let launcher = launcher_suffix(instances.saturating_sub(1));
        let longest = if worker.len() >= launcher.len() {
            worker
        } else {
            launcher
        };
        let max_len = MAX_LABEL - longest.len();
        if name.len() > max_len {
            let generated = match prefix {
                Some(_) => format!(", to which {added} are added"),
                None => String::new(),
            };
            self.limit(
                field,
                shown,
                format!(
                    "has {} characters{generated}, and the name of its last process, <job>{longest}, must fit in {MAX_LABEL}",
                    shown.len()
                ),
                format!("use at most {} characters", max_len - added),
            );
        }
    }

    fn launcher(&mut self, launcher: &RawLauncher) {
        for (i, EnvVar { name, value }) in launcher.env.iter().enumerate() {
            if name.is_empty() || name.contains(['=', '\0']) {
                self.refuse::<()>(
                    &format!("spec.launcher.env[{i}].name"),
                    Some(&format!("{name:?}")),
                    "a variable's name is not empty and holds neither '=' nor NUL",
                    "give the name alone",
                );
            }
            if value.contains('\0') {
                // The value is hidden, because it may be a secret.
                let field = format!("spec.launcher.env[{i}].value");
                self.refuse::<()>(&field, Some("…"), "a variable's value holds no NUL", "remove it");
            }
        }
        let interface = launcher.tcp_interface.as_ref();
        if let Some(text) =
            interface.filter(|text| text.is_empty() || !text.chars().all(|c| c.is_ascii_graphic()))
        {
            self.refuse::<()>(
                TCP_INTERFACE,
                Some(&format!("{text:?}")),
                "must be interfaces or subnets as Open MPI reads them, without blanks",
                "write eth0 or 10.0.0.0/16, for example, several with commas",
            );
        }
    }

    /// Source: V-IPU guide §6.6, §6.6.1, §6.7.
    fn shape(&mut self, spec: &RawSpec, instances: u32, workers: u32) -> Option<JobKind> {
        let command = spec
            .launcher
            .as_ref()
            .and_then(|launcher| launcher.command.as_deref());
        let program = command.and_then(<[_]>::first).map(String::as_str);
        let shape = match (&spec.interactive, &spec.launcher) {
            (None, None) => return Some(JobKind::Workers),
            (None, Some(_)) => {
                let (rule, fix) = match program {
                    None | Some("") => (
                        "a launcher starts the work with a command",
                        "add the program and its arguments, one list item each",
                    ),
                    Some(_) if command?.iter().any(|word| word.contains('\0')) => {
                        ("no argument can hold a NUL character", "remove it")
                    }
                    Some(_) => ("", ""),
                };
                if !rule.is_empty() {
                    return self.refuse(
                        COMMAND,
                        program.map(|program| if program.is_empty() { "\"\"" } else { program }),
                        rule,
                        fix,
                    );
                }
                JobKind::Launcher {
                    command: command?.to_vec(),
                }
            }
            (Some(interactive), _) => {
                if command.is_some() {
                    self.warn(
                        COMMAND,
                        program,
                        "is not run: the job is interactive, and users work in its launcher",
                        "leave out launcher.command or interactive",
                    );
                }
                let Some(ttl) = &interactive.ttl else {
                    return self.refuse(
                        "spec.interactive.ttl",
                        None,
                        "an interactive job ends after it",
                        "add the seconds that the session may last",
                    );
                };
                JobKind::Interactive {
                    ttl: self.seconds("spec.interactive.ttl", Some(ttl), 1)?,
                }
            }
        };
        if instances > 1 {
            self.warn(
                INSTANCES,
                Some(&instances.to_string()),
                "each instance has a launcher of its own, which starts work on that instance's workers only",
                "use 1 for one training over all workers",
            );
        }
        let is_mpi = matches!(&shape, JobKind::Launcher { command } if is_mpi_command(command));
        if workers > 1 && is_mpi && !spec.launcher.as_ref().is_some_and(has_tcp_interface) {
            self.warn(
                COMMAND,
                program,
                format!("{workers} workers communicate over MPI, and the network interface is not determined (a documented limitation)"),
                format!("set {TCP_INTERFACE}, which exports OMPI_MCA_{BTL_TCP_IF_INCLUDE}, or pass --mca {BTL_TCP_IF_INCLUDE}"),
            );
        }
        Some(shape)
    }

    /// Source: V-IPU guide §6.7.3.
    fn clean_pod_policy(&mut self, spec: &RawSpec) -> Option<CleanPodPolicy> {
        match spec.clean_pod_policy.as_deref() {
            None | Some("None") => Some(CleanPodPolicy::None),
            Some("Workers") => Some(CleanPodPolicy::Workers),
            Some("All") => Some(CleanPodPolicy::All),
            Some(other) => {
                let fix = suggest(other, &["None", "Workers", "All"]);
                self.refuse(
                    "spec.cleanPodPolicy",
                    Some(other),
                    "must be None, Workers or All",
                    fix,
                )
            }
        }
    }

    /// Source: V-IPU guide §6.7.2.
    fn restart(&mut self, policy: &RawRestartPolicy) -> Option<RestartPolicy> {
        const KINDS: [&str; 4] = ["Always", "OnFailure", "Never", "ExitCode"];
        let limit = policy.back_off_limit.as_ref();
        let limit = limit.map_or(Some(DEFAULT_BACK_OFF_LIMIT), |limit| {
            self.number("spec.restartPolicy.backOffLimit", limit, 0, MAX_INTEGER)
        });
        let Some(kind) = policy.kind.as_deref() else {
            let rule = format!("a restart policy is one of {}", KINDS.join(", "));
            return self.refuse(
                RESTART,
                None,
                rule,
                "add its type, or leave restartPolicy out for Never",
            );
        };
        if !KINDS.contains(&kind) {
            let rule = format!("must be one of {}", KINDS.join(", "));
            return self.refuse(RESTART, Some(kind), rule, suggest(kind, &KINDS));
        }
        if let (Some(codes), false) = (&policy.exit_codes, kind == "ExitCode") {
            let rule = format!("is ignored under {kind}");
            self.warn(
                CODES,
                Some(&codes.to_string()),
                rule,
                "use the type ExitCode to have it matter",
            );
        }
        let back_off_limit = limit?;
        Some(match kind {
            "Always" => RestartPolicy::Always { back_off_limit },
            "OnFailure" => RestartPolicy::OnFailure { back_off_limit },
            "ExitCode" => RestartPolicy::ExitCode {
                retryable: self.exit_codes(policy)?,
                back_off_limit,
            },
            _ => RestartPolicy::Never,
        })
    }

    /// Returns the retryable codes; 128 to 255 unless the job sets others (V-IPU guide §6.7.2).
    fn exit_codes(&mut self, policy: &RawRestartPolicy) -> Option<ExitCodeSet> {
        let text = match &policy.exit_codes {
            None => return Some(ExitCodeSet::default_retryable()),
            Some(IntOrString::Int(code)) => code.to_string(),
            Some(IntOrString::String(text)) => text.clone(),
        };
        let codes = match text.parse::<ExitCodeSet>() {
            Ok(codes) => codes,
            Err(error) => {
                let rule = format!(
                    "must be exit codes from 0 to 255 and rising ranges, separated by commas, which {:?} is not",
                    error.part
                );
                return self.refuse(CODES, Some(&text), rule, "write 128-255,42, for example");
            }
        };
        if codes.contains(0) {
            self.warn(
                CODES,
                Some(&text),
                "0 is success and never retried",
                "leave it out, or use the type Always",
            );
        }
        Some(codes)
    }

    /// Returns the value of one of the name types, if it is given.
    fn name<T>(&mut self, field: &str, value: Option<Result<T, NameError>>, description: &str) -> Option<T> {
        match value? {
            Ok(name) => Some(name),
            Err(NameError { value, rule, .. }) => {
                let shown = format!("{value:?}");
                self.refuse(
                    field,
                    Some(&shown),
                    format!("must be {rule}"),
                    format!("give {description}"),
                )
            }
        }
    }

    /// Returns a duration in seconds of at least `min`.
    fn seconds(&mut self, field: &str, value: Option<&IntOrString>, min: u32) -> Option<Duration> {
        let seconds = self.number(field, value?, min, MAX_INTEGER)?;
        Some(Duration::from_secs(u64::from(seconds)))
    }

    fn count(&mut self, field: &str, value: &IntOrString) -> Option<u32> {
        self.number(field, value, 1, MAX_WORKERS)
    }

    /// Returns the whole number in `value` if it is from `min` to `max`.
    fn number<T>(&mut self, field: &str, value: &IntOrString, min: T, max: T) -> Option<T>
    where
        T: Into<i64> + TryFrom<i64>,
    {
        let value = self.whole(field, value)?;
        let (min, max) = (min.into(), max.into());
        let nearest = value.clamp(min, max);
        if nearest != value {
            let (rule, fix) = (
                format!("must be from {min} to {max}"),
                format!("use {nearest}, for example"),
            );
            return self.refuse(field, Some(&value.to_string()), rule, fix);
        }
        T::try_from(value).ok()
    }

    fn whole(&mut self, field: &str, value: &IntOrString) -> Option<i64> {
        let number = value.as_int();
        if number.is_none() {
            self.refuse::<()>(
                field,
                Some(&value.to_string()),
                "must be a whole number",
                "write digits only",
            );
        }
        number
    }

    /// Adds a violation that makes the job unable to run; returns `None`.
    fn refuse<T>(
        &mut self,
        field: &str,
        value: Option<&str>,
        rule: impl Into<String>,
        fix: impl Into<String>,
    ) -> Option<T> {
        self.violations.push(Violation::new(field, value, rule, fix));
        None
    }

    /// Adds a violation of a policy limit: an error for a new job, a warning for a stored one.
    fn limit(&mut self, field: &str, value: &str, rule: String, fix: String) {
        let violation = Violation::new(field, Some(value), rule, fix);
        match self.limits.is_stored() {
            false => self.violations.push(violation),
            true => self.warnings.push(violation),
        }
    }

    /// Adds a warning: the job runs, but the field may not have the effect that its author expects.
    fn warn(&mut self, field: &str, value: Option<&str>, rule: impl Into<String>, fix: impl Into<String>) {
        self.warnings.push(Warning::new(field, value, rule, fix));
    }
}

/// Returns whether `name` is `prefix` with a random end.
fn is_generated(name: &str, prefix: &str) -> bool {
    let used = prefix.get(..MAX_PREFIX_LEN).unwrap_or(prefix);
    name.len() == used.len() + GENERATED_LEN && name.starts_with(used)
}

/// Suggests the supported value that differs from `word` in case only, or all of them.
fn suggest(word: &str, supported: &[&str]) -> String {
    match supported
        .iter()
        .find(|supported| supported.eq_ignore_ascii_case(word))
    {
        Some(supported) => format!("write {supported}"),
        None => format!("use {}", supported.join(" or ")),
    }
}

/// Returns whether `command` is or calls Open MPI's launcher, also from within a shell's `-c`.
fn is_mpi_command(command: &[String]) -> bool {
    let names_mpi = |word: &str| {
        let program = word.rsplit_once('/').map_or(word, |(_, name)| name);
        matches!(program, "mpirun" | "mpiexec" | "orterun")
    };
    command
        .iter()
        .any(|argument| argument.split_whitespace().any(names_mpi))
}

fn has_tcp_interface(launcher: &RawLauncher) -> bool {
    let command = launcher.command.as_deref().unwrap_or_default();
    launcher.tcp_interface.is_some()
        || command.iter().any(|word| word.contains(BTL_TCP_IF_INCLUDE))
        || launcher
            .env
            .iter()
            .any(|var| var.name.contains(BTL_TCP_IF_INCLUDE))
}
