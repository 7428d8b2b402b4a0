//! The policy of the guide, and mutants with one defect each.

use std::cell::Cell;

use ipu_core::IpuCount;
use ipu_core::hardware::{Block, Inventory, InventoryView, IpuAddress, Topology};
use ipu_core::placement::{PlacementPolicy, PlacementRequest};

/// A policy of one expression.
macro_rules! policy {
    ($(#[$doc:meta])* $name:ident, |$self:ident, $view:ident, $request:ident| $choose:expr) => {
        policy!($(#[$doc])* $name {}, |$self, $view, $request| $choose);
    };
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty)? }, |$self:ident, $view:ident, $request:ident| $choose:expr) => {
        $(#[$doc])*
        #[derive(Default)]
        pub(super) struct $name {
            $($field: $type)?
        }

        impl PlacementPolicy for $name {
            fn name(&self) -> &str {
                stringify!($name)
            }

            fn choose(&$self, $view: &InventoryView<'_>, $request: &PlacementRequest) -> Option<Block> {
                $choose
            }
        }
    };
}

policy!(
    /// Chooses held IPUs.
    Overlaps,
    |self, view, request| {
        let mut unheld = Inventory::new(view.inventory().topology());
        for (owner, at) in view.inventory().cordons() {
            unheld.cordon(owner, [at]).unwrap();
        }
        unheld.view(request.allocation.as_ref()).unwrap().first_fit(request.size)
    }
);

policy!(
    /// Chooses cordoned IPUs.
    IgnoresCordons,
    |self, view, request| {
        let mut uncordoned = Inventory::new(view.inventory().topology());
        let mut inventory = view.inventory().clone();
        let all: Vec<_> = view.inventory().cordons().map(|(owner, at)| (owner.clone(), at)).collect();
        for (owner, at) in all {
            inventory.uncordon(&owner, [at]).unwrap();
        }
        for (holder, block) in inventory.holders() {
            uncordoned.occupy(holder.clone(), block.clone()).unwrap();
        }
        uncordoned.view(request.allocation.as_ref()).unwrap().first_fit(request.size)
    }
);

policy!(
    /// Chooses consecutive free IPUs with an offset of one.
    Misaligned,
    |self, view, request| {
        let good = view.first_fit(request.size)?;
        let later: Vec<_> = good.addresses().map(|at| IpuAddress { ipu: at.ipu + 1, ..at }).collect();
        let free = |at: &IpuAddress| at.ipu < 64 && view.inventory().free_mask(at.link_domain) >> at.ipu & 1 == 1;
        if request.size <= IpuCount::LINK_DOMAIN && request.size > IpuCount::ONE && later.iter().all(free) {
            return Block::from_ipus(later).ok();
        }
        Some(good)
    }
);

policy!(
    /// Chooses twice the size, if possible.
    Generous,
    |self, view, request| {
        let twice = IpuCount::from_order(request.size.order() + 1)?;
        view.first_fit(twice).or_else(|| view.first_fit(request.size))
    }
);

policy!(
    /// Treats all agents of a cluster as one allocation.
    CrossesAllocations,
    |self, view, request| {
        if request.allocation.is_some() {
            return view.first_fit(request.size);
        }
        let inventory = view.inventory();
        let mut joined = Inventory::new(&Topology::new(inventory.topology().clusters().to_vec(), None).ok()?);
        for (holder, block) in inventory.holders() {
            joined.occupy(holder.clone(), block.clone()).unwrap();
        }
        for (owner, at) in inventory.cordons() {
            joined.cordon(owner, [at]).unwrap();
        }
        joined.whole_view().first_fit(request.size)
    }
);

policy!(
    /// Considers only the first link domain.
    GivesUpEarly,
    |self, view, request| view.blocks(request.size).find(|block| block.first().link_domain == 0)
);

policy!(
    /// Alternates between the lowest and the highest block.
    TakesTurns { turn: Cell<u32> },
    |self, view, request| {
        self.turn.set(self.turn.get() + 1);
        if self.turn.get().is_multiple_of(2) {
            return view.blocks(request.size).last();
        }
        view.first_fit(request.size)
    }
);

policy!(
    /// Remembers requests for one IPU, and chooses the highest block afterwards.
    Remembers { single: Cell<bool> },
    |self, view, request| {
        if request.size == IpuCount::ONE {
            self.single.set(true);
            return view.first_fit(request.size);
        }
        if self.single.get() {
            return view.blocks(request.size).last();
        }
        view.first_fit(request.size)
    }
);

policy!(
    /// Depends on the internal tables of the inventory.
    LooksInside,
    |self, view, request| {
        let text = format!("{:?}", view.inventory());
        let digest = text.bytes().fold(0_u32, |digest, byte| digest.wrapping_mul(31).wrapping_add(byte.into()));
        if digest.is_multiple_of(2) {
            return view.blocks(request.size).last();
        }
        view.first_fit(request.size)
    }
);

policy!(
    /// Panics if nothing is free.
    PanicsOnFull,
    |self, view, request| {
        let Some(largest) = view.largest_block() else { panic!("no IPU is free") };
        view.first_fit(request.size.min(largest)).filter(|_| largest >= request.size)
    }
);

policy!(
    /// Combines link domains of different clusters.
    SpansClusters,
    |self, view, request| {
        if request.size <= IpuCount::LINK_DOMAIN {
            return view.first_fit(request.size);
        }
        let topology = view.inventory().topology();
        let whole = (0..topology.link_domains()).rev().filter(|domain| view.free_in(*domain) == 64);
        Block::whole(whole.take(request.size.get() as usize / 64)).ok().filter(|block| block.ipus() == request.size.get())
    }
);

policy!(
    /// Chooses the highest block instead of the lowest.
    LastFit,
    |self, view, request| view.blocks(request.size).last()
);

policy!(
    /// Ignores the requested allocation.
    AnyAllocation,
    |self, view, request| view.inventory().whole_view().first_fit(request.size)
);

policy!(
    /// Chooses halves of link domains instead of whole ones.
    TakesHalves,
    |self, view, request| {
        if request.size <= IpuCount::LINK_DOMAIN {
            return view.first_fit(request.size);
        }
        let whole = view.first_fit(request.size)?;
        let mut ipus: Vec<IpuAddress> = whole.addresses().collect();
        let half = IpuCount::try_from(32).unwrap();
        let home = |block: &Block| view.inventory().topology().cluster_of(block.first().link_domain).map(|(cluster, _)| cluster.id.clone());
        let mut halves = view.blocks(half).filter(|block| home(block) == home(&whole));
        if let Some(other) = halves.find(|block| !ipus.contains(&block.first())) {
            ipus.truncate(ipus.len() - 32);
            ipus.extend(other.addresses());
        }
        Block::from_ipus(ipus).ok()
    }
);

policy!(
    /// Invents IPUs if none are free.
    Invents,
    |self, view, request| {
        let beyond = view.inventory().topology().link_domains();
        view.first_fit(request.size).or_else(|| Block::within(beyond, 0, request.size).ok())
    }
);

policy!(
    /// Always declines.
    Declines,
    |self, _view, _request| None
);
