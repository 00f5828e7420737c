//! Nodes and reservations as slurmctld reports them.

use std::ptr;

use bftrainer::sys;

use super::{Slurm, SlurmError, check, records, text, unchanged};
use crate::classes::NodeTraits;

/// A node's base state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeBase {
    /// No job.
    Idle,
    /// All of it allocated.
    Allocated,
    /// A part allocated.
    Mixed,
    /// Anything else, unknown states included: never to be harvested.
    Other,
}

/// A node.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeRecord {
    /// Slurm's name.
    pub name: String,
    /// Where it is reached.
    pub address: String,
    /// Its base state.
    pub base: NodeBase,
    /// A job is being cleaned up on it.
    pub completing: bool,
    /// It bears a flag other than completing and planned: drained, not
    /// responding, reserved, in maintenance, powered down ...
    pub flagged: bool,
    /// What it has that tasks may ask for.
    pub traits: NodeTraits,
}

/// A reservation that has not ended.
#[derive(Clone, Debug, PartialEq)]
pub struct ReservationRecord {
    /// Its nodes.
    pub nodes: Vec<String>,
    /// Its start, epoch seconds.
    pub start_time_s: i64,
}

impl Slurm {
    /// All nodes, or `None` when nothing has changed since the last call.
    pub fn load_nodes(&mut self) -> Result<Option<Vec<NodeRecord>>, SlurmError> {
        let mut message = ptr::null_mut();
        // SAFETY: `message` receives an allocation that is freed below.
        let result = check(unsafe {
            // SHOW_MIXED: a node with a part allocated is mixed, not allocated.
            let show = sys::BFT_SHOW_ALL | sys::BFT_SHOW_MIXED;
            sys::slurm_load_node(self.nodes_as_of, &mut message, show)
        });
        match result {
            Err(error) if unchanged(&error) => return Ok(None),
            other => other?,
        }
        // SAFETY: the call succeeded, so the array holds record_count records.
        let (nodes, as_of) = unsafe {
            let nodes = records((*message).node_array, (*message).record_count);
            (
                nodes.iter().filter_map(node_record).collect(),
                (*message).last_update,
            )
        };
        // SAFETY: `message` came from slurm_load_node.
        unsafe { sys::slurm_free_node_info_msg(message) };
        self.nodes_as_of = as_of;
        Ok(Some(nodes))
    }

    /// The reservations that have not ended.
    pub fn load_reservations(&self) -> Result<Vec<ReservationRecord>, SlurmError> {
        let mut message = ptr::null_mut();
        // SAFETY: `message` receives an allocation that is freed below.
        check(unsafe { sys::slurm_load_reservations(0, &mut message) })?;
        // SAFETY: the call succeeded, so the array holds record_count records.
        let reservations = unsafe {
            records((*message).reservation_array, (*message).record_count)
                .iter()
                .map(|reservation| ReservationRecord {
                    nodes: text::hosts(&text::owned(reservation.node_list)),
                    start_time_s: reservation.start_time,
                })
                .collect()
        };
        // SAFETY: `message` came from slurm_load_reservations.
        unsafe { sys::slurm_free_reservation_info_msg(message) };
        Ok(reservations)
    }
}

fn node_record(node: &sys::node_info_t) -> Option<NodeRecord> {
    let name = text::owned(node.name);
    if name.is_empty() {
        // Slurm leaves holes in the array for nodes that are hidden or deleted.
        return None;
    }
    let harmless = sys::BFT_NODE_STATE_COMPLETING | sys::BFT_NODE_STATE_PLANNED;
    let base = match node.node_state & sys::NODE_STATE_BASE {
        sys::NODE_STATE_IDLE => NodeBase::Idle,
        sys::NODE_STATE_ALLOCATED => NodeBase::Allocated,
        sys::NODE_STATE_MIXED => NodeBase::Mixed,
        _ => NodeBase::Other,
    };
    Some(NodeRecord {
        address: text::owned(node.node_addr),
        base,
        completing: node.node_state & sys::BFT_NODE_STATE_COMPLETING != 0,
        flagged: node.node_state & sys::NODE_STATE_FLAGS & !harmless != 0,
        traits: node_traits(node),
        name,
    })
}

fn node_traits(node: &sys::node_info_t) -> NodeTraits {
    // Where no feature was ever changed, all are active.
    let active = match node.features_act.is_null() {
        true => node.features,
        false => node.features_act,
    };
    NodeTraits::new(
        &text::owned(active),
        &text::owned(node.gres),
        u32::from(node.cpus),
        node.real_memory,
        node.tmp_disk,
    )
}
