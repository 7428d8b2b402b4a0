//! The IPUs that a job requests.

use ipu_core::IpuCount;

use super::environment::{BY_SLURM, HookEnvironment};
use crate::conf::{ConfFiles, LicenseList, ModelConf};
use crate::error::{InputError, decimal};

/// The licenses of the job.
pub(super) const LICENSES: &str = "SLURM_JOB_LICENSES";

/// The IPUs that a job requests.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobIpus {
    /// The model: the name of the license, and of its `<model>.conf`.
    pub model: String,
    /// The number of IPUs: the count of the license.
    pub ipus: IpuCount,
    /// `--ipu-gcds`, default 1.
    pub gcds: u32,
    /// `--ipu-reconfigurable`.
    pub reconfigurable: bool,
}

/// An option of the SPANK plugin.
struct SpankOption {
    flag: &'static str,
    /// The variable that the plugin sets.
    own: &'static str,
    /// The variable that Slurm sets.
    slurm: &'static str,
}

const IPUS: SpankOption = option("--ipus", "SPANK_VIPU_IPUS", "SPANK__SLURM_SPANK_OPTION_vipu_ipus");
const MODEL: SpankOption = option(
    "--ipu-model",
    "SPANK_VIPU_MODEL",
    "SPANK__SLURM_SPANK_OPTION_vipu_ipu_model",
);
const GCDS: SpankOption = option(
    "--ipu-gcds",
    "SPANK_VIPU_GCDS",
    "SPANK__SLURM_SPANK_OPTION_vipu_ipu_gcds",
);
const RECONFIGURABLE: SpankOption = option(
    "--ipu-reconfigurable",
    "SPANK_VIPU_RECONFIGURABLE",
    "SPANK__SLURM_SPANK_OPTION_vipu_ipu_reconfigurable",
);

const fn option(flag: &'static str, own: &'static str, slurm: &'static str) -> SpankOption {
    SpankOption { flag, own, slurm }
}

impl SpankOption {
    /// Returns the value. The two variables must agree, if both are set.
    fn value<'a>(&self, variables: &'a HookEnvironment) -> Result<Option<&'a str>, InputError> {
        let (own, slurm) = (variables.text(self.own)?, variables.text(self.slurm)?);
        match (own, slurm) {
            (Some(own), Some(slurm)) if own != slurm => {
                let rule = format!("must be {slurm} as in {}", self.slurm);
                Err(InputError::new(self.own, Some(own), rule, BY_SLURM))
            }
            (own, slurm) => Ok(own.or(slurm)),
        }
    }

    fn number(&self, variables: &HookEnvironment) -> Result<Option<u32>, InputError> {
        let Some(text) = self.value(variables)? else {
            return Ok(None);
        };
        match decimal(text) {
            Some(number) => Ok(Some(number)),
            None => Err(InputError::new(
                self.own,
                Some(text),
                "must be a number",
                BY_SLURM,
            )),
        }
    }
}

/// Returns whether the job of a hook of slurmctld may have requested IPUs, without any check of the request:
/// it has an option of the SPANK plugin, or the license of a model.
///
/// ```
/// use ipu_slurm::{HookEnvironment, may_request_ipus};
///
/// let has_pod64 = |variable: &str, value: &str| {
///     let variables = HookEnvironment::new([(variable.into(), value.into())]);
///     may_request_ipus(&variables, |license| license == "pod64")
/// };
/// assert!(has_pod64("SLURM_JOB_LICENSES", "matlab:1|pod64:x"));
/// assert!(has_pod64("SPANK_VIPU_IPUS", "4"));
/// assert!(!has_pod64("SLURM_JOB_LICENSES", "matlab:1"));
/// ```
#[must_use]
pub fn may_request_ipus(variables: &HookEnvironment, is_model: impl Fn(&str) -> bool) -> bool {
    let is_set = |name| !matches!(variables.text(name), Ok(None));
    let options = [&IPUS, &MODEL, &GCDS, &RECONFIGURABLE];
    if options
        .iter()
        .any(|option| is_set(option.own) || is_set(option.slurm))
    {
        return true;
    }
    match variables.text(LICENSES) {
        Ok(text) => text.is_some_and(|text| names_model(text, is_model)),
        Err(_) => true,
    }
}

/// Returns whether a license list, valid or not, has the name of a model.
pub(super) fn names_model(licenses: &str, is_model: impl Fn(&str) -> bool) -> bool {
    licenses
        .split([',', ';', '|', '&', '(', ')', ' '])
        .filter_map(|part| part.split([':', '@', '=', '*']).next())
        .any(is_model)
}

/// Returns the request; none for a job without IPUs.
pub(super) fn request(variables: &HookEnvironment, conf: &ConfFiles) -> Result<Option<JobIpus>, InputError> {
    let is_model = |name: &str| conf.model(name).is_some();
    if !may_request_ipus(variables, is_model) {
        return Ok(None);
    }
    let requested = IPUS.number(variables)?;
    // The value of an option without argument is Slurm's affair.
    let reconfigurable =
        variables.text(RECONFIGURABLE.own)?.is_some() || variables.text(RECONFIGURABLE.slurm)?.is_some();
    let (name, ipus) = license(variables, is_model, requested)?;
    if let Some(model) = MODEL.value(variables)?
        && model != name
    {
        let rule = format!("must be {name}, the license of the job");
        let fix = "ask for IPUs in one way only: --ipus, --gres or --licenses";
        return Err(InputError::new(MODEL.own, Some(model), rule, fix));
    }
    let count = format!("{name}:{ipus}");
    let limit = conf.model(&name).map_or(0, ModelConf::max_ipus_per_job);
    let ipus = match IpuCount::try_from(ipus) {
        Ok(ipus) if ipus.get() <= limit => ipus,
        Ok(_) => {
            let rule = format!("at most {limit} IPUs of {name} per job");
            let fix = "ask for fewer, or raise MaxIpusPerJob in the file of the model";
            return Err(InputError::new(LICENSES, Some(&count), rule, fix));
        }
        Err(_) => {
            let rule = "the IPUs of a partition are a power of two";
            let fix = format!(
                "ask for {}",
                ipus.max(1).checked_next_power_of_two().unwrap_or(limit)
            );
            return Err(InputError::new(LICENSES, Some(&count), rule, fix));
        }
    };
    let gcds = GCDS.number(variables)?.unwrap_or(1);
    if gcds == 0 || ipus.get() % gcds != 0 {
        let rule = format!("must divide the {ipus} IPUs of the job");
        let fix = format!("use a power of two from 1 to {ipus} in {}", GCDS.flag);
        return Err(InputError::new(GCDS.own, Some(&gcds.to_string()), rule, fix));
    }
    Ok(Some(JobIpus {
        model: name,
        ipus,
        gcds,
        reconfigurable,
    }))
}

/// Returns model and count of the license for IPUs, and checks it against `--ipus`.
fn license(
    variables: &HookEnvironment,
    is_model: impl Fn(&str) -> bool,
    requested: Option<u32>,
) -> Result<(String, u32), InputError> {
    let text = variables.text(LICENSES)?.unwrap_or_default();
    let list = LicenseList::parse(LICENSES, text);
    let mut licenses = list.items().iter().filter(|license| is_model(license.name()));
    let Some(first) = licenses.next() else {
        if let Some(error) = list.errors().first() {
            let violation = &error.violation;
            return Err(InputError::new(
                LICENSES,
                Some(text),
                &*violation.rule,
                &*violation.fix,
            ));
        }
        let rule = format!("a job with {} needs a license of a model", IPUS.flag);
        let fix = "set JobSubmitPlugins=lua and install job_submit.lua";
        let shown = (!text.is_empty()).then_some(text);
        return Err(InputError::new(LICENSES, shown, rule, fix));
    };
    if licenses.next().is_some() {
        let rule = "a job has IPUs of one model";
        return Err(InputError::new(LICENSES, Some(text), rule, "ask for one of them"));
    }
    if let Some(ipus) = requested.filter(|ipus| *ipus != first.count()) {
        let rule = format!("must be the same as --ipus={ipus}");
        let fix = "ask for IPUs in one way only: --ipus, --gres or --licenses";
        return Err(InputError::new(LICENSES, Some(text), rule, fix));
    }
    Ok((first.name().to_owned(), first.count()))
}
