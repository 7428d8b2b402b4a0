//! The values of all options of one command, and the rules between them.

use crate::job_option::JobOption;
use crate::option_error::{MAX_IPUS, MAX_MODEL, MAX_RECONFIGURABLE, OptionError};

/// The request of one command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct IpuRequest {
    ipus: Option<u32>,
    model: Option<String>,
    gcds: Option<u32>,
    reconfigurable: bool,
}

impl IpuRequest {
    /// Creates an empty request.
    pub(crate) const fn new() -> Self {
        Self {
            ipus: None,
            model: None,
            gcds: None,
            reconfigurable: false,
        }
    }

    /// Takes the value of an option; a later one replaces an earlier one, as for Slurm's own options.
    pub(crate) fn set(&mut self, option: JobOption, value: &str) -> Result<(), OptionError> {
        match option {
            JobOption::Ipus => self.ipus = Some(parse_power_of_two(option, value)?),
            JobOption::Gcds => self.gcds = Some(parse_power_of_two(option, value)?),
            JobOption::Model => self.model = Some(parse_model(value)?),
            JobOption::Reconfigurable => self.reconfigurable = true,
        }
        Ok(())
    }

    /// Checks the rules between options. GCDs without `--ipus` are allowed: `--gres` or `--licenses` may ask
    /// for the IPUs, which only `job_submit.lua` can see.
    pub(crate) fn check(&self) -> Result<(), OptionError> {
        let Some(ipus) = self.ipus else { return Ok(()) };
        if let Some(gcds) = self.gcds
            && gcds > ipus
        {
            return Err(OptionError::TooManyGcds { gcds, ipus });
        }
        if self.reconfigurable && ipus > MAX_RECONFIGURABLE {
            return Err(OptionError::TooLargeToReconfigure { ipus });
        }
        Ok(())
    }

    /// Checks a later component of a heterogeneous job. Slurm hands options of the first one on, so equal
    /// options are none.
    pub(crate) fn check_later_component(&self, first: &Self) -> Result<(), OptionError> {
        let added = JobOption::ALL
            .into_iter()
            .filter(|option| self.value(*option) != first.value(*option))
            .find_map(|option| self.value(option).map(|value| (option, value)));
        match added {
            Some((option, value)) => Err(OptionError::LaterComponent { option, value }),
            None => Ok(()),
        }
    }

    /// Checks the request of a step against its job, whose variables `job_value` returns.
    pub(crate) fn check_step(
        &self,
        job_value: impl Fn(JobOption) -> Option<String>,
    ) -> Result<(), OptionError> {
        for option in JobOption::ALL {
            let (value, job_value) = (self.value(option), job_value(option));
            if let Some(value) = value
                && job_value.as_ref() != Some(&value)
            {
                return Err(OptionError::StepDiffers {
                    option,
                    value,
                    job_value,
                });
            }
        }
        Ok(())
    }

    /// Returns the value of an option's variable, if the option was given.
    pub(crate) fn value(&self, option: JobOption) -> Option<String> {
        match option {
            JobOption::Ipus => self.ipus.map(|ipus| ipus.to_string()),
            JobOption::Model => self.model.clone(),
            JobOption::Gcds => self.gcds.map(|gcds| gcds.to_string()),
            JobOption::Reconfigurable => self.reconfigurable.then(|| "1".into()),
        }
    }
}

fn parse_power_of_two(option: JobOption, value: &str) -> Result<u32, OptionError> {
    let not_a_power_of_two = |next| OptionError::NotAPowerOfTwo {
        option,
        value: value.into(),
        next,
    };
    let digits = value.strip_prefix('-').unwrap_or(value);
    if digits.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return Err(OptionError::NotANumber {
            option,
            value: value.into(),
        });
    }
    if digits.len() < value.len() {
        return Err(not_a_power_of_two(1));
    }
    // Only a number of too many digits fails here.
    let number = value.parse::<u32>().unwrap_or(u32::MAX);
    if number > MAX_IPUS {
        return Err(not_a_power_of_two(MAX_IPUS));
    }
    if !number.is_power_of_two() {
        return Err(not_a_power_of_two(number.next_power_of_two()));
    }
    // One spelling of a number, because hooks and scripts compare texts.
    if value.starts_with('0') {
        return Err(not_a_power_of_two(number));
    }
    Ok(number)
}

fn parse_model(value: &str) -> Result<String, OptionError> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    let is_name = value.starts_with(|c: char| c.is_ascii_alphabetic())
        && value.len() <= MAX_MODEL
        && value.chars().all(plain);
    if is_name {
        Ok(value.into())
    } else {
        Err(OptionError::NotAModel { value: value.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(options: &[(JobOption, &str)]) -> IpuRequest {
        let mut request = IpuRequest::new();
        for (option, value) in options {
            request.set(*option, value).unwrap();
        }
        request
    }

    fn refusal(option: JobOption, value: &str) -> String {
        IpuRequest::new().set(option, value).unwrap_err().to_string()
    }

    #[test]
    fn powers_of_two_are_accepted() {
        for order in 0..=16 {
            let text = (1u32 << order).to_string();
            assert_eq!(
                request(&[(JobOption::Ipus, &text)]).value(JobOption::Ipus),
                Some(text)
            );
        }
    }

    #[test]
    fn a_bad_number_is_refused_with_the_next_possible_size() {
        for (value, next) in [
            ("0", "use 1"),
            ("3", "use 4"),
            ("-1", "use 1"),
            ("5", "use 8"),
            ("04", "use 4"),
            ("65537", "use 65536"),
            ("99999999999", "use 65536"),
            ("abc", "use 1, 2, 4 or 8"),
            ("1e3", "use 1, 2, 4 or 8"),
            ("", "use 1, 2, 4 or 8"),
            ("-", "use 1, 2, 4 or 8"),
            ("+4", "use 1, 2, 4 or 8"),
            (" 4", "use 1, 2, 4 or 8"),
            ("４", "use 1, 2, 4 or 8"),
        ] {
            let text = refusal(JobOption::Ipus, value);
            assert!(text.starts_with(&format!("--ipus={value}: ")), "{text}");
            assert!(text.contains("a power of two from 1 to 65536"), "{text}");
            assert!(text.ends_with(next), "{text}");
            assert!(refusal(JobOption::Gcds, value).ends_with(next));
        }
    }

    #[test]
    fn a_model_is_a_name() {
        let named = request(&[(JobOption::Model, "pod-64.a_b")]);
        assert_eq!(named.value(JobOption::Model).as_deref(), Some("pod-64.a_b"));
        let long = "p".repeat(MAX_MODEL + 1);
        for value in ["", "64", "pod:64", "pod 64", "pod,64", "pod|64", long.as_str()] {
            assert!(refusal(JobOption::Model, value).contains("begins with a letter"));
        }
    }

    #[test]
    fn gcds_divide_the_ipus() {
        let with = |ipus, gcds| request(&[(JobOption::Ipus, ipus), (JobOption::Gcds, gcds)]).check();
        assert_eq!(with("4", "4"), Ok(()));
        let text = with("4", "8").unwrap_err().to_string();
        assert_eq!(
            text,
            "--ipu-gcds=8: the GCDs divide the 4 IPUs of --ipus; use a power of two from 1 to 4"
        );
        assert_eq!(request(&[(JobOption::Gcds, "8")]).check(), Ok(()));
    }

    #[test]
    fn a_reconfigurable_partition_lies_in_one_link_domain() {
        let with = |ipus| request(&[(JobOption::Ipus, ipus), (JobOption::Reconfigurable, "")]).check();
        assert_eq!(with("64"), Ok(()));
        assert!(with("128").unwrap_err().to_string().contains("use --ipus=64"));
    }

    #[test]
    fn a_later_value_replaces_an_earlier_one() {
        let later = request(&[(JobOption::Ipus, "4"), (JobOption::Ipus, "8")]);
        assert_eq!(later.value(JobOption::Ipus).as_deref(), Some("8"));
    }

    #[test]
    fn only_the_first_component_has_options() {
        let first = request(&[(JobOption::Ipus, "4")]);
        assert_eq!(first.check_later_component(&first), Ok(()));
        let without = IpuRequest::new();
        assert_eq!(without.check_later_component(&first), Ok(()));
        let text = first.check_later_component(&without).unwrap_err().to_string();
        assert_eq!(
            text,
            "--ipus=4: only the first component of a heterogeneous job has IPUs; ask for them on the first \
             component"
        );
    }

    #[test]
    fn a_step_has_the_options_of_its_job() {
        let job = |option| (option == JobOption::Ipus).then(|| String::from("4"));
        assert_eq!(IpuRequest::new().check_step(job), Ok(()));
        assert_eq!(request(&[(JobOption::Ipus, "4")]).check_step(job), Ok(()));
        let text = |options| request(options).check_step(job).unwrap_err().to_string();
        assert_eq!(
            text(&[(JobOption::Ipus, "8")]),
            "--ipus=8: a step has the partition of its job, which was submitted with --ipus=4; leave the \
             option out, and submit the job with --ipu-gcds=N to share its IPUs among N tasks of a step"
        );
        assert_eq!(
            text(&[(JobOption::Reconfigurable, "")]),
            "--ipu-reconfigurable: a step has the partition of its job, which was submitted without \
             --ipu-reconfigurable; leave the option out"
        );
    }
}
