//! The settings of `slurm.conf` that IPUs need.

mod graphcore;

use super::slurm_text::{Setting, SlurmText};
use super::{Finding, Model, RenderInput, Severity};
use crate::conf::{ConfError, ConfFiles, LicenseList};

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

/// Both files, with what was found in them. An included file overrides settings of `slurm.conf`.
struct Rules<'a, 'b> {
    slurm_conf: &'b mut SlurmText<'a>,
    included: Option<&'b mut SlurmText<'a>>,
    findings: &'b mut Vec<Finding>,
}

/// Adds to both files the changes that IPUs need. The pair tells whether nodes have GRES `vipu`, and whether
/// some of it are static partitions.
pub(super) fn apply<'a>(
    input: &RenderInput<'_>,
    conf: &ConfFiles,
    models: &[Model<'_>],
    (has_gres, has_static): (bool, bool),
    slurm_conf: &mut SlurmText<'a>,
    included: Option<&mut SlurmText<'a>>,
    findings: &mut Vec<Finding>,
) {
    let mut rules = Rules {
        slurm_conf,
        included,
        findings,
    };
    rules.include();
    rules.select_type();
    rules.directory();
    if has_gres {
        rules.list(
            "GresTypes",
            &["vipu".to_owned()],
            Severity::Error,
            "Slurm knows no resource vipu",
        );
    }
    rules.list(
        "PropagateResourceLimitsExcept",
        &["MEMLOCK".to_owned()],
        Severity::Error,
        "jobs have the locked memory of the login host, and IPUs may not initialise",
    );
    let has_map = conf.cluster().host_map().is_some();
    if has_map {
        rules.exclusive_nodes(input.host_map);
    }
    if has_static {
        rules.hook_links(input, &STATIC_HOOKS);
        rules.prolog_flags();
    }
    if models.is_empty() {
        if has_map {
            rules.hooks(input, conf);
        } else if has_static {
            rules.hook_links(input, &HOOKS[2..]);
        }
        return;
    }
    let licenses: Vec<String> = models
        .iter()
        .map(|model| format!("{}:{}", model.name, model.ipus))
        .collect();
    rules.licenses(&licenses);
    if models.iter().any(|model| !model.has_license_only) {
        let lua = "ipu_slurm.lua does not turn requests into licenses";
        rules.list("JobSubmitPlugins", &["lua".to_owned()], Severity::Error, lua);
    }
    rules.hooks(input, conf);
    let shell = "the shell of salloc has no variables of the partition";
    let step = ["use_interactive_step".to_owned()];
    rules.list("LaunchParameters", &step, Severity::Warning, shell);
    if has_slurmdbd([Some(&*rules.slurm_conf), rules.included.as_deref()]) {
        let resources: Vec<String> = models
            .iter()
            .map(|model| format!("license/{}", model.name))
            .collect();
        let accounting = "sacct does not show the IPUs of jobs, and a QOS cannot limit them";
        rules.list("AccountingStorageTRES", &resources, Severity::Warning, accounting);
    } else {
        rules.unaccounted();
    }
}

/// Returns whether Slurm accounts in a database. Without it, slurmctld does not start with a license in
/// `AccountingStorageTRES`.
pub(super) fn has_slurmdbd(files: [Option<&SlurmText<'_>>; 2]) -> bool {
    let mut files = files.into_iter().flatten();
    files.any(|file| {
        let value = file.get("AccountingStorageType").map(|setting| setting.value);
        value.is_some_and(|value| value.eq_ignore_ascii_case("accounting_storage/slurmdbd"))
    })
}

/// Returns the licenses in force: those of the first file that has any.
pub(super) fn licenses(files: [Option<&SlurmText<'_>>; 2]) -> Result<LicenseList, Vec<ConfError>> {
    let mut files = files.into_iter().flatten();
    match files.find_map(|file| Some((file, file.get("Licenses")?))) {
        Some((file, setting)) => LicenseList::parse(file.name, setting.value).map_err(|_| {
            vec![file.error(
                &setting,
                "must be a list of licenses".to_owned(),
                "write name:count,name2:count".to_owned(),
            )]
        }),
        None => Ok(LicenseList::default()),
    }
}

impl<'a> Rules<'a, '_> {
    /// Returns the setting in force, and whether it is in the file that is changed.
    fn get(&self, key: &str) -> Option<(Setting<'a>, bool)> {
        let included = self.included.as_ref();
        match included.map(|file| file.get(key)) {
            Some(Some(setting)) => Some((setting, true)),
            Some(None) => Some((self.slurm_conf.get(key)?, false)),
            None => Some((self.slurm_conf.get(key)?, true)),
        }
    }

    fn main(&mut self) -> &mut SlurmText<'a> {
        match &mut self.included {
            Some(included) => included,
            None => self.slurm_conf,
        }
    }

    /// Sets a key, and reports the change.
    fn set(&mut self, key: &str, value: &str, severity: Severity, rule: &str) {
        let (rule, fix) = (rule.to_owned(), format!("write {key}={value}"));
        let error = match self.get(key) {
            Some((setting, true)) => {
                let error = self.main().error(&setting, rule, fix);
                self.main().replace(&setting, value);
                error
            }
            found => {
                self.main().add(format!("{key}={value}"));
                match found {
                    Some((setting, _)) => self.slurm_conf.error(&setting, rule, fix),
                    None => self.main().absent(key, rule, fix),
                }
            }
        };
        self.findings.push(Finding { severity, error });
    }

    /// Adds items to a list with commas, unless it has them.
    fn list(&mut self, key: &str, items: &[String], severity: Severity, rule: &str) {
        let old = self
            .get(key)
            .map(|(setting, _)| setting.value)
            .unwrap_or_default();
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

    /// Sets the licenses of models, and keeps those of other products.
    fn licenses(&mut self, licenses: &[String]) {
        let old = self
            .get("Licenses")
            .map(|(setting, _)| setting.value)
            .unwrap_or_default();
        let name_of = |item: &str| item.split([':', '@']).next().unwrap_or_default().to_owned();
        let mut list: Vec<String> = old
            .split(',')
            .filter(|item| !item.is_empty())
            .map(str::to_owned)
            .collect();
        for license in licenses {
            match list.iter_mut().find(|item| name_of(item) == name_of(license)) {
                Some(item) => item.clone_from(license),
                None => list.push(license.clone()),
            }
        }
        let new = list.join(",");
        if new != old {
            let rule = "Slurm counts the IPUs of a model as licenses";
            self.set("Licenses", &new, Severity::Error, rule);
        }
    }

    /// Removes licenses from the accounted resources.
    fn unaccounted(&mut self) {
        const KEY: &str = "AccountingStorageTRES";
        let Some((setting, _)) = self.get(KEY) else { return };
        let items = setting.value.split(',');
        let kept: Vec<&str> = items.filter(|item| !item.starts_with("license/")).collect();
        let kept = kept.join(",");
        let rule = "without slurmdbd, slurmctld does not start with a license here";
        if kept.is_empty() {
            self.remove(KEY, rule, "remove it");
        } else if kept != setting.value {
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
        let flags = self
            .get(KEY)
            .map(|(setting, _)| setting.value)
            .unwrap_or_default();
        let is_alloc = |flag: &str| ALLOC_FLAGS.iter().any(|known| known.eq_ignore_ascii_case(flag));
        if !flags.split(',').any(is_alloc) {
            let rule = "tasks of a requeued job start without a partition on some of its nodes";
            self.list(KEY, &[ALLOC_FLAGS[0].to_owned()], Severity::Error, rule);
        }
    }

    /// Sets a hook. A hook of the site stays: it may call the program.
    fn hook(&mut self, key: &str, path: &str) {
        let name = path.rsplit('/').next().unwrap_or_default();
        match self.get(key) {
            None => self.set(key, path, Severity::Error, "no program does this step"),
            Some((setting, _)) if setting.value.ends_with(name) => {}
            Some((setting, in_main)) => {
                let rule = "is a program of your own, and stays".to_owned();
                let fix = format!("call {path} from it");
                let file = if in_main {
                    self.main()
                } else {
                    &mut *self.slurm_conf
                };
                let error = file.error(&setting, rule, fix);
                self.findings.push(Finding {
                    severity: Severity::Warning,
                    error,
                });
            }
        }
    }

    /// Raises the time limits of PrologSlurmctld above its wait for IPUs.
    fn timeouts(&mut self, wait: u64) {
        for key in ["PrologEpilogTimeout", "PrologTimeout"] {
            let seconds = self
                .get(key)
                .and_then(|(setting, _)| setting.value.parse::<u64>().ok());
            if seconds.is_some_and(|seconds| seconds <= wait) {
                let value = (wait + HOOK_SECONDS).min(MAX_SECONDS).to_string();
                let rule =
                    format!("Slurm kills PrologSlurmctld while it waits {wait} s for IPUs (WaitInProlog)");
                self.set(key, &value, Severity::Error, &rule);
            }
        }
    }
}
