//! Kills of the agent and of the proxy, at random moments.

use std::time::{Duration, Instant};

use ipu_testkit::Random;

use crate::cluster::Cluster;

/// Minimum time between two kills of one daemon, and the random part of it, in milliseconds.
const UP: (u32, u32) = (2000, 4000);
/// Minimum time until the daemon is started again, and the random part of it, in milliseconds.
const DOWN: (u32, u32) = (50, 1500);

/// The state of one daemon.
struct Victim {
    is_up: bool,
    next: Instant,
    kills: u32,
}

/// Kills the agent and the proxy now and then, and starts them again.
pub(crate) struct Chaos {
    random: Random,
    agent: Victim,
    proxy: Victim,
}

impl Chaos {
    /// Starts the agent. The proxy of the cluster runs already.
    pub(crate) fn new(cluster: &mut Cluster, mut random: Random) -> Self {
        cluster.start_agent();
        let mut victim = || Victim {
            is_up: true,
            next: Instant::now() + draw(&mut random, UP),
            kills: 0,
        };
        let (agent, proxy) = (victim(), victim());
        Self { random, agent, proxy }
    }

    /// Returns how often the agent was killed, and the proxy.
    pub(crate) const fn kills(&self) -> (u32, u32) {
        (self.agent.kills, self.proxy.kills)
    }

    /// Kills or starts what is due.
    pub(crate) fn step(&mut self, cluster: &mut Cluster) {
        let random = &mut self.random;
        match self.agent.turn(random) {
            Some(true) => cluster.start_agent(),
            Some(false) => cluster.kill_agent(),
            None => {}
        }
        match self.proxy.turn(random) {
            Some(true) => cluster.launch_proxy(),
            Some(false) => cluster.kill_proxy(),
            None => {}
        }
    }

    /// Starts what is down.
    pub(crate) fn end(&mut self, cluster: &mut Cluster) {
        if !self.agent.is_up {
            cluster.start_agent();
        }
        if !self.proxy.is_up {
            cluster.launch_proxy();
        }
        cluster.wait_for_proxy();
    }
}

impl Victim {
    /// Returns whether the daemon comes up or goes down now; none if nothing is due.
    fn turn(&mut self, random: &mut Random) -> Option<bool> {
        if Instant::now() < self.next {
            return None;
        }
        self.is_up = !self.is_up;
        self.kills += u32::from(!self.is_up);
        self.next = Instant::now() + draw(random, if self.is_up { UP } else { DOWN });
        Some(self.is_up)
    }
}

fn draw(random: &mut Random, (least, more): (u32, u32)) -> Duration {
    Duration::from_millis(u64::from(least + random.below(more)))
}
