//! The token that identifies a run in the ledger, and from which its liveness can be determined later.

use std::fmt;
use std::fs;
use std::str::FromStr;

use super::procfs;

/// Identity of an `ipuctl` process: pid and start time, unique within a boot and a pid namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pid: i32,
    started: u64,
    boot: String,
    namespace: String,
}

/// Liveness of a holder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HolderState {
    /// The process runs.
    Live,
    /// The process has ended.
    Dead,
    /// The process is not visible: it is in another pid namespace, or there is no valid token.
    Unknown,
}

impl Holder {
    /// Returns the identity of this process.
    pub(crate) fn own() -> std::io::Result<Self> {
        let pid = i32::try_from(std::process::id()).map_err(std::io::Error::other)?;
        let started = procfs::process(pid)
            .ok_or_else(|| std::io::Error::other("this process is missing in /proc"))?
            .started;
        Ok(Self {
            pid,
            started,
            boot: boot()?,
            namespace: namespace()?,
        })
    }

    /// Returns the liveness of the process of `token`.
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

/// Returns the number of the pid namespace, the digits of `pid:[4026531836]`.
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

/// Error of a token that does not have the form of [`Holder`].
#[derive(Debug)]
pub(crate) struct InvalidToken;

impl FromStr for Holder {
    type Err = InvalidToken;

    fn from_str(text: &str) -> Result<Self, InvalidToken> {
        let mut parts = text.split(' ');
        let mut value = |name: &str| {
            parts
                .next()
                .and_then(|part| part.strip_prefix(name)?.strip_prefix('='))
                .ok_or(InvalidToken)
        };
        Ok(Self {
            pid: value("pid")?.parse().map_err(|_| InvalidToken)?,
            started: value("started")?.parse().map_err(|_| InvalidToken)?,
            boot: value("boot")?.to_owned(),
            namespace: value("pidns")?.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_tells_live_from_dead_processes() {
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
    fn a_process_that_is_not_visible_is_never_dead() {
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
