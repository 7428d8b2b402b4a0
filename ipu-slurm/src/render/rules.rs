//! The settings of `slurm.conf` that IPUs need.

mod graphcore;
mod licenses;
mod repeated;

use super::edits::Edits;
use super::{Finding, Model, RenderInput, Severity, SlurmVersion};
use crate::conf::{ConfFiles, SlurmConf, SlurmSetting};

pub(super) use licenses::{absent as absent_licenses, in_force as licenses};
pub(super) use repeated::repeated;

/// The keys of hooks in `slurm.conf`, with the names of the links to the program.
const HOOKS: [(&str, &str); 3] = [
    ("PrologSlurmctld", "prolog-slurmctld"),
    ("EpilogSlurmctld", "epilog-slurmctld"),
    ("TaskProlog", "task-prolog"),
];
/// The hooks of nodes with static partitions.
const STATIC_HOOKS: [(&str, &str); 2] = [("Prolog", "prolog"), ("Epilog", "epilog")];
/// The flags that run Prolog on each node of an allocation; all but the first imply it.
const ALLOC_FLAGS: [&str; 7] = [
    "Alloc",
    "Contain",
    "DeferBatch",
    "ForceRequeueOnFail",
    "NoHold",
    "RunInJob",
    "X11",
];
/// Largest time limit that Slurm takes, in seconds.
const MAX_SECONDS: u64 = 65_533;
/// Time of a hook besides the wait for IPUs, in seconds.
const HOOK_SECONDS: u64 = 60;

/// The configuration with the changes so far.
struct Rules<'a, 'b> {
    conf: &'a SlurmConf,
    version: SlurmVersion,
    edits: &'b mut Edits,
    findings: &'b mut Vec<Finding>,
    /// Whether every absent key was added.
    is_complete: bool,
}

/// Adds the changes that IPUs need. `has_gres` and `has_static` say whether nodes have GRES `vipu`, and
/// whether some of it are static partitions. Returns false if a line was not added, because an included file
/// that cannot be read may have its key.
pub(super) fn apply(
    input: &RenderInput<'_>,
    conf: &ConfFiles,
    models: &[Model<'_>],
    (has_gres, has_static): (bool, bool),
    edits: &mut Edits,
    findings: &mut Vec<Finding>,
) -> bool {
    let mut rules = Rules {
        conf: &input.slurm_conf,
        version: input.version,
        edits,
        findings,
        is_complete: true,
    };
    rules.all(input, conf, models, (has_gres, has_static));
    rules.refused_lines();
    rules.findings.extend(repeated(&input.slurm_conf, input.version));
    rules.is_complete
}

/// Returns whether Slurm accounts in a database. Without it, slurmctld does not start with a license in
/// `AccountingStorageTRES`.
pub(super) fn has_slurmdbd(conf: &SlurmConf) -> bool {
    let value = conf.value("AccountingStorageType");
    value.is_some_and(|value| value.eq_ignore_ascii_case("accounting_storage/slurmdbd"))
}

impl<'a> Rules<'a, '_> {
    fn all(
        &mut self,
        input: &RenderInput<'_>,
        conf: &ConfFiles,
        models: &[Model<'_>],
        (has_gres, has_static): (bool, bool),
    ) {
        let mistakes = licenses::mistakes(self.conf, conf);
        self.findings.extend(mistakes.into_iter().map(Finding::error));
        self.select_type();
        self.directory();
        if has_gres {
            self.list(
                "GresTypes",
                &["vipu".to_owned()],
                Severity::Error,
                "Slurm knows no resource vipu",
            );
        }
        self.list(
            "PropagateResourceLimitsExcept",
            &["MEMLOCK".to_owned()],
            Severity::Error,
            "jobs have the locked memory of the login host, and IPUs may not initialise",
        );
        let has_map = conf.cluster().host_map().is_some();
        if has_map {
            self.exclusive_nodes(input.host_map);
        }
        if has_static {
            self.hook_links(input, &STATIC_HOOKS);
            self.prolog_flags();
        }
        if models.is_empty() {
            if has_map {
                self.hooks(input, conf);
            } else if has_static {
                self.hook_links(input, &HOOKS[2..]);
            }
            return;
        }
        self.licenses(models);
        if models.iter().any(|model| !model.has_license_only) {
            let lua = "ipu_slurm.lua does not turn requests into licenses";
            self.list("JobSubmitPlugins", &["lua".to_owned()], Severity::Error, lua);
        }
        self.hooks(input, conf);
        let shell = "the shell of salloc has no variables of the partition";
        let step = ["use_interactive_step".to_owned()];
        self.list("LaunchParameters", &step, Severity::Warning, shell);
        if has_slurmdbd(&input.slurm_conf) {
            let resources: Vec<String> = models
                .iter()
                .map(|model| format!("license/{}", model.name))
                .collect();
            let accounting = "sacct does not show the IPUs of jobs, and a QOS cannot limit them";
            self.list("AccountingStorageTRES", &resources, Severity::Warning, accounting);
        } else {
            self.unaccounted();
        }
    }

    /// Reports a change of a setting, or a line that is added for an absent one.
    fn report(
        &mut self,
        severity: Severity,
        key: &str,
        setting: Option<&SlurmSetting>,
        rule: &str,
        fix: &str,
    ) {
        let error = match setting {
            Some(setting) => self.conf.error(setting, rule, fix),
            None => self.conf.absent(key, rule, fix),
        };
        self.findings.push(Finding { severity, error });
    }

    /// Sets a key, and reports the change. An absent key is not added if a file that cannot be read may have
    /// it: the later line overrides the earlier one.
    fn set(&mut self, key: &str, value: &str, severity: Severity, rule: &str) {
        let fix = format!("write {key}={value}");
        match self.conf.get(key) {
            Some(setting) => {
                self.report(severity, key, Some(setting), rule, &fix);
                self.edits.replace(setting, value);
            }
            None if self.conf.unread().is_empty() => {
                self.report(severity, key, None, rule, &fix);
                self.edits.add(key, value);
            }
            None => {
                self.is_complete = false;
                let fix = format!("{fix}, unless an included file that cannot be read has {key}");
                self.report(Severity::Warning, key, None, rule, &fix);
            }
        }
    }

    /// Removes a key from all files.
    fn remove(&mut self, key: &str, rule: &str, fix: &str) {
        for setting in self.conf.all(key) {
            self.report(Severity::Error, key, Some(setting), rule, fix);
            self.edits.remove(setting);
        }
    }

    /// Reports lines that Slurm refuses. No daemon and no command then starts.
    fn refused_lines(&mut self) {
        let refused = self.conf.refused_lines().cloned();
        self.findings.extend(refused.map(Finding::error));
    }

    /// Adds items to a list with commas, unless it has them.
    fn list(&mut self, key: &str, items: &[String], severity: Severity, rule: &str) {
        let old = self.conf.value(key).unwrap_or_default();
        let mut list: Vec<&str> = old.split(',').filter(|item| !item.is_empty()).collect();
        let before = list.len();
        for item in items {
            let is_known =
                |known: &&str| known.eq_ignore_ascii_case(item) || known.eq_ignore_ascii_case("ALL");
            if !list.iter().any(is_known) {
                list.push(item);
            }
        }
        if list.len() > before {
            self.set(key, &list.join(","), severity, rule);
        }
    }

    /// Removes licenses from the accounted resources.
    fn unaccounted(&mut self) {
        const KEY: &str = "AccountingStorageTRES";
        let Some(old) = self.conf.value(KEY) else { return };
        let items = old.split(',');
        let kept: Vec<&str> = items.filter(|item| !item.starts_with("license/")).collect();
        let kept = kept.join(",");
        let rule = "without slurmdbd, slurmctld does not start with a license here";
        if kept.is_empty() {
            self.remove(KEY, rule, "remove it");
        } else if kept != old {
            self.set(KEY, &kept, Severity::Error, rule);
        }
    }

    /// Sets the hooks, and the time limits of PrologSlurmctld.
    fn hooks(&mut self, input: &RenderInput<'_>, conf: &ConfFiles) {
        self.hook_links(input, &HOOKS);
        self.timeouts(conf.cluster().wait_in_prolog().as_secs());
    }

    fn hook_links(&mut self, input: &RenderInput<'_>, hooks: &[(&str, &str)]) {
        for (key, link) in hooks {
            self.hook(key, &format!("{}/{link}", input.options.hook_directory));
        }
    }

    /// Lets Prolog run on each node of an allocation. Slurm otherwise runs it at the first step on a node,
    /// and not if the node knows the job id of an earlier run.
    fn prolog_flags(&mut self) {
        const KEY: &str = "PrologFlags";
        let flags = self.conf.value(KEY).unwrap_or_default();
        let is_alloc = |flag: &str| ALLOC_FLAGS.iter().any(|known| known.eq_ignore_ascii_case(flag));
        if !flags.split(',').any(is_alloc) {
            let rule = "tasks of a requeued job start without a partition on some of its nodes";
            self.list(KEY, &[ALLOC_FLAGS[0].to_owned()], Severity::Error, rule);
        }
    }

    /// Sets a hook. A hook of the site stays: it may call the program.
    fn hook(&mut self, key: &str, path: &str) {
        let name = path.rsplit('/').next().unwrap_or_default();
        let mut programs: Vec<&SlurmSetting> = self.conf.all(key).collect();
        if key == "TaskProlog" || self.version < SlurmVersion::SEVERAL_HOOKS {
            programs.drain(..programs.len().saturating_sub(1));
        }
        let Some(last) = programs.last() else {
            return self.set(key, path, Severity::Error, "no program does this step");
        };
        if !programs.iter().any(|program| program.value().ends_with(name)) {
            let rule = "is a program of your own, and stays";
            self.report(
                Severity::Warning,
                key,
                Some(last),
                rule,
                &format!("call {path} from it"),
            );
        }
    }

    /// Raises the time limits of PrologSlurmctld above its wait for IPUs.
    fn timeouts(&mut self, wait: u64) {
        for key in ["PrologEpilogTimeout", "PrologTimeout"] {
            let seconds = self.conf.value(key).and_then(|value| value.parse::<u64>().ok());
            if seconds.is_some_and(|seconds| seconds <= wait) {
                let value = (wait + HOOK_SECONDS).min(MAX_SECONDS).to_string();
                let rule =
                    format!("Slurm kills PrologSlurmctld while it waits {wait} s for IPUs (WaitInProlog)");
                self.set(key, &value, Severity::Error, &rule);
            }
        }
    }
}
