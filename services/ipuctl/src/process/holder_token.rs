//! The token by which the ledger knows a run: enough to tell later, without doubt, whether that run still lives.

use std::fmt;
use std::fs;
use std::str::FromStr;

use super::procfs;

/// One `ipuctl` process: pid and start time name it on this boot, in this pid namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pid: i32,
    started: u64,
    boot: String,
    namespace: String,
}

/// What can be said of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HolderState {
    /// It runs.
    Live,
    /// It ended.
    Dead,
    /// It cannot be seen from here: another pid namespace, or no token at all.
    Unknown,
}

impl Holder {
    /// This very process.
    pub(crate) fn own() -> std::io::Result<Self> {
        let pid = i32::try_from(std::process::id()).map_err(std::io::Error::other)?;
        let started = procfs::process(pid)
            .ok_or_else(|| std::io::Error::other("/proc does not show this process"))?
            .started;
        Ok(Self {
            pid,
            started,
            boot: boot()?,
            namespace: namespace()?,
        })
    }

    /// Whether the process that `token` names still runs.
    pub(crate) fn judge(token: &str) -> HolderState {
        let (Ok(holder), Ok(boot), Ok(namespace)) = (token.parse::<Self>(), boot(), namespace()) else {
            return HolderState::Unknown;
        };
        if holder.boot != boot {
            return HolderState::Dead;
        }
        if holder.namespace != namespace {
            return HolderState::Unknown;
        }
        match procfs::process(holder.pid) {
            Some(process) if process.started == holder.started && !process.has_ended() => HolderState::Live,
            _ => HolderState::Dead,
        }
    }
}

fn boot() -> std::io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?
        .trim()
        .to_owned())
}

/// The number of the pid namespace: `pid:[4026531836]` without its wrapping.
fn namespace() -> std::io::Result<String> {
    let link = fs::read_link("/proc/self/ns/pid")?;
    Ok(link
        .to_string_lossy()
        .chars()
        .filter(char::is_ascii_digit)
        .collect())
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "pid={} started={} boot={} pidns={}",
            self.pid, self.started, self.boot, self.namespace
        )
    }
}

/// A token that is not of the form that [`Holder`] prints.
#[derive(Debug)]
pub(crate) struct NotAHolder;

impl FromStr for Holder {
    type Err = NotAHolder;

    fn from_str(text: &str) -> Result<Self, NotAHolder> {
        let mut parts = text.split(' ');
        let mut value = |name: &str| {
            parts
                .next()
                .and_then(|part| part.strip_prefix(name)?.strip_prefix('='))
                .ok_or(NotAHolder)
        };
        Ok(Self {
            pid: value("pid")?.parse().map_err(|_| NotAHolder)?,
            started: value("started")?.parse().map_err(|_| NotAHolder)?,
            boot: value("boot")?.to_owned(),
            namespace: value("pidns")?.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_says_whether_its_process_lives() {
        let own = Holder::own().unwrap();
        assert_eq!(own.to_string().parse::<Holder>().unwrap(), own);
        assert_eq!(Holder::judge(&own.to_string()), HolderState::Live);

        let recycled = Holder {
            started: own.started + 1,
            ..own.clone()
        };
        assert_eq!(Holder::judge(&recycled.to_string()), HolderState::Dead);
        let before_reboot = Holder {
            boot: "another".into(),
            ..own.clone()
        };
        assert_eq!(Holder::judge(&before_reboot.to_string()), HolderState::Dead);
    }

    #[test]
    fn what_cannot_be_seen_is_never_called_dead() {
        let own = Holder::own().unwrap();
        let elsewhere = Holder {
            namespace: "1".into(),
            started: 1,
            ..own
        };
        assert_eq!(Holder::judge(&elsewhere.to_string()), HolderState::Unknown);
        assert_eq!(Holder::judge("by hand"), HolderState::Unknown);
    }
}
