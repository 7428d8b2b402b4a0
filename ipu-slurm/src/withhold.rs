//! The reservation that withholds licenses of a model, so that jobs pend while others hold its IPUs.
//!
//! A reservation with `LICENSE_ONLY` (shown as `ANY_NODES`) may exceed the free licenses, survives a restart
//! of slurmctld, and `UNLIMITED` is 365 days from its start. `update Duration=UNLIMITED` does not extend it;
//! `EndTime` does. Slurm 26.05 refuses a count of 0 (seen on 22.05.8, 24.11.5 and 26.05.5).

use crate::conf::LicenseList;
use crate::error::{InputError, decimal};

/// The beginning of the names of our reservations. The model follows.
pub const RESERVATION_PREFIX: &str = "ipu_";
/// A reservation that ends within so many seconds is extended: half of the 365 days.
const RENEW_BEFORE: u64 = 182 * 86_400;

/// A reservation as `scontrol -o show reservation` shows it, with `SLURM_TIME_FORMAT=%s`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reservation {
    /// The name.
    pub name: String,
    /// The end in seconds since 1970.
    pub end_time: u64,
    /// Whether it reserves nodes.
    pub has_nodes: bool,
    /// The licenses as Slurm prints them.
    pub licenses: String,
}

/// Returns how many licenses of a model to withhold: those whose IPUs are neither free at the controller nor
/// held there by this cluster.
#[must_use]
pub const fn withheld(licenses: u32, free: u32, held_here: u32) -> u32 {
    licenses.saturating_sub(free.saturating_add(held_here))
}

impl Reservation {
    /// Parses the output of `scontrol -o show reservation`.
    ///
    /// # Errors
    ///
    /// The first reservation that cannot be read.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, InputError> {
        if text.trim() == "No reservations in the system" {
            return Ok(Vec::new());
        }
        text.lines()
            .filter(|line| !line.trim().is_empty())
            .map(Self::parse)
            .collect()
    }

    fn parse(line: &str) -> Result<Self, InputError> {
        // A comment, which may have blanks, is printed after these keys.
        let value = |key: &str| {
            let mut tokens = line.split(' ').filter_map(|token| token.split_once('='));
            let found = tokens.find(|(name, _)| *name == key);
            found.map(|(_, value)| value).ok_or_else(|| {
                let rule = format!("a reservation has {key}");
                InputError::new("ReservationName", Some(line), rule, "check the version of Slurm")
            })
        };
        let end = value("EndTime")?;
        let end_time = decimal(end).ok_or_else(|| {
            InputError::new(
                "EndTime",
                Some(end),
                "must be seconds since 1970",
                "set SLURM_TIME_FORMAT=%s",
            )
        })?;
        Ok(Self {
            name: value("ReservationName")?.to_owned(),
            end_time,
            has_nodes: !matches!(value("Nodes")?, "" | "(null)"),
            licenses: value("Licenses")?.to_owned(),
        })
    }

    /// Returns the count of the license of `model`, if the reservation is one of ours: no nodes, no other
    /// licenses.
    fn count(&self, model: &str) -> Option<u32> {
        if self.has_nodes {
            return None;
        }
        let list = LicenseList::parse("Licenses", &self.licenses);
        match list.items() {
            _ if !list.errors().is_empty() => None,
            [] => Some(0),
            [license] if license.name() == model => Some(license.count()),
            _ => None,
        }
    }
}

/// Returns the arguments of the `scontrol` call that leads from the present reservations to `wanted` withheld
/// licenses of `model`; none if nothing has to change. SlurmUser may run it.
///
/// # Errors
///
/// If the reservation of this name has nodes or other licenses: it is not ours, and is left as it is.
///
/// ```
/// use ipu_slurm::{Reservation, reservation_command, withheld};
///
/// let present = Reservation::parse_list(
///     "ReservationName=ipu_pod64 EndTime=1827135498 Nodes=(null) Licenses=pod64:32\n\
///      ReservationName=ipu_pod16 EndTime=1827135498 Nodes=n1 Licenses=(null)\n",
/// )?;
/// let now = 1_795_599_500;
/// // Of 64 licenses, 16 have free IPUs, and jobs of this Slurm cluster hold the IPUs of 8.
/// let command = reservation_command("pod64", withheld(64, 16, 8), &present, now)?;
/// assert_eq!(
///     command.expect("32 are withheld now").join(" "),
///     "update reservation ReservationName=ipu_pod64 Licenses=pod64:40",
/// );
/// assert_eq!(
///     reservation_command("pod16", 4, &present, now).unwrap_err().to_string(),
///     "ReservationName = ipu_pod16: reserves nodes or licenses other than pod16; \
///      give that reservation another name",
/// );
/// # Ok::<(), ipu_slurm::InputError>(())
/// ```
pub fn reservation_command(
    model: &str,
    wanted: u32,
    present: &[Reservation],
    now: u64,
) -> Result<Option<Vec<String>>, InputError> {
    let name = format!("{RESERVATION_PREFIX}{model}");
    let named = format!("ReservationName={name}");
    let licenses = format!("Licenses={model}:{wanted}");
    let Some(current) = present.iter().find(|reservation| reservation.name == name) else {
        return Ok((wanted > 0).then(|| {
            let settings = [
                "StartTime=now",
                "Duration=UNLIMITED",
                "Flags=LICENSE_ONLY",
                "Users=root",
            ];
            let mut command = vec!["create".to_owned(), "reservation".to_owned(), named, licenses];
            command.extend(settings.map(str::to_owned));
            command
        }));
    };
    let Some(count) = current.count(model) else {
        return Err(InputError::new(
            "ReservationName",
            Some(&name),
            format!("reserves nodes or licenses other than {model}"),
            "give that reservation another name",
        ));
    };
    if wanted == 0 {
        // `scontrol delete reservation NAME` exists in no version that was tried.
        return Ok(Some(vec!["delete".to_owned(), named]));
    }
    let mut changes = Vec::new();
    if count != wanted {
        changes.push(licenses);
    }
    if current.end_time < now.saturating_add(RENEW_BEFORE) {
        changes.push("EndTime=now+365days".to_owned());
    }
    if changes.is_empty() {
        return Ok(None);
    }
    let mut command = vec!["update".to_owned(), "reservation".to_owned(), named];
    command.append(&mut changes);
    Ok(Some(command))
}
