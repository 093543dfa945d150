//! The structures that libibverbs and librdmacm share with their callers: the application binary
//! interface of rdma-core (`infiniband/verbs.h`, `rdma/rdma_cma.h`), which has been stable since
//! version 1.1 of 2007. Only the parts that this crate uses are declared. If this crate needs only
//! the first fields of a structure, only these fields are declared, and this crate never creates or
//! moves such a structure.

use std::ffi::{c_int, c_uint, c_void};

/// The first fields of `struct ibv_context`.
#[repr(C)]
pub(super) struct Context {
    _device: *mut c_void,
    pub(super) ops: ContextOps,
}

/// `struct ibv_context_ops`: functions that the header's inline code calls through pointers in the
/// context, instead of through symbols of the library.
#[repr(C)]
pub(super) struct ContextOps {
    _before_poll: [*mut c_void; 11],
    pub(super) poll_cq: unsafe extern "C" fn(*mut Cq, c_int, *mut Completion) -> c_int,
    pub(super) req_notify_cq: unsafe extern "C" fn(*mut Cq, c_int) -> c_int,
    _before_post: [*mut c_void; 12],
    pub(super) post_send:
        unsafe extern "C" fn(*mut Qp, *mut SendRequest, *mut *mut SendRequest) -> c_int,
    pub(super) post_recv:
        unsafe extern "C" fn(*mut Qp, *mut ReceiveRequest, *mut *mut ReceiveRequest) -> c_int,
}

/// The first fields of `struct ibv_cq`.
#[repr(C)]
pub(super) struct Cq {
    pub(super) context: *mut Context,
}

/// The first fields of `struct ibv_qp`.
#[repr(C)]
pub(super) struct Qp {
    pub(super) context: *mut Context,
}

/// `struct ibv_pd`; none of its fields is needed.
#[repr(C)]
pub(super) struct Pd {
    _context: *mut Context,
}

/// The first fields of `struct ibv_comp_channel`.
#[repr(C)]
pub(super) struct CompletionChannel {
    _context: *mut Context,
    pub(super) fd: c_int,
}

/// `struct ibv_mr`.
#[repr(C)]
pub(super) struct Mr {
    _context: *mut Context,
    _pd: *mut Pd,
    _addr: *mut c_void,
    _length: usize,
    _handle: u32,
    pub(super) lkey: u32,
    _rkey: u32,
}

/// `struct ibv_sge`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// `struct ibv_send_wr`. After the immediate data it has unions for operations that this crate does
/// not use.
#[repr(C)]
pub(super) struct SendRequest {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendRequest,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_uint,
    pub(super) send_flags: c_uint,
    /// In network byte order.
    pub(super) imm_data: u32,
    pub(super) unused: [u64; 11],
}

/// `struct ibv_recv_wr`.
#[repr(C)]
pub(super) struct ReceiveRequest {
    pub(super) wr_id: u64,
    pub(super) next: *mut ReceiveRequest,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

/// `struct ibv_wc`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Completion {
    pub(super) wr_id: u64,
    pub(super) status: c_uint,
    pub(super) opcode: c_uint,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    /// In network byte order.
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

/// `struct ibv_qp_init_attr`, with the `struct ibv_qp_cap` in it.
#[repr(C)]
pub(super) struct QpInit {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut c_void,
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
    pub(super) qp_type: c_uint,
    pub(super) sq_sig_all: c_int,
}

/// `struct rdma_event_channel`.
#[repr(C)]
pub(super) struct CmChannel {
    pub(super) fd: c_int,
}

/// The first fields of `struct rdma_cm_id`.
#[repr(C)]
pub(super) struct CmId {
    pub(super) verbs: *mut Context,
    _channel: *mut CmChannel,
    _context: *mut c_void,
    pub(super) qp: *mut Qp,
}

/// `struct rdma_conn_param`.
#[repr(C)]
pub(super) struct ConnParam {
    pub(super) private_data: *const c_void,
    pub(super) private_data_len: u8,
    pub(super) responder_resources: u8,
    pub(super) initiator_depth: u8,
    pub(super) flow_control: u8,
    pub(super) retry_count: u8,
    pub(super) rnr_retry_count: u8,
    pub(super) srq: u8,
    pub(super) qp_num: u32,
}

/// `struct rdma_cm_event`. Of the union at its end, only the variant for connections is declared.
#[repr(C)]
pub(super) struct CmEvent {
    pub(super) id: *mut CmId,
    pub(super) _listen_id: *mut CmId,
    pub(super) event: c_uint,
    pub(super) status: c_int,
    pub(super) conn: ConnParam,
}

/// `IBV_QPT_RC`.
pub(super) const QPT_RC: c_uint = 2;
/// `IBV_WR_SEND_WITH_IMM`.
pub(super) const WR_SEND_WITH_IMM: c_uint = 3;
/// `IBV_SEND_SIGNALED`.
pub(super) const SEND_SIGNALED: c_uint = 2;
/// `IBV_SEND_SOLICITED`.
pub(super) const SEND_SOLICITED: c_uint = 4;
/// `IBV_WC_SUCCESS`.
pub(super) const WC_SUCCESS: c_uint = 0;
/// `IBV_WC_WITH_IMM`.
pub(super) const WC_WITH_IMM: c_uint = 2;
/// `IBV_ACCESS_LOCAL_WRITE`.
pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
/// `RDMA_PS_TCP`.
pub(super) const PS_TCP: c_uint = 0x0106;

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    /// Checks the sizes and offsets that a C compiler computes from the headers of rdma-core on a
    /// 64-bit machine.
    #[test]
    fn the_layout_is_that_of_the_headers() {
        assert_eq!(size_of::<SendRequest>(), 128);
        assert_eq!(offset_of!(SendRequest, imm_data), 36);
        assert_eq!(size_of::<ReceiveRequest>(), 32);
        assert_eq!(size_of::<Completion>(), 48);
        assert_eq!(offset_of!(Completion, byte_len), 20);
        assert_eq!(offset_of!(Completion, imm_data), 24);
        assert_eq!(offset_of!(Completion, wc_flags), 36);
        assert_eq!((size_of::<Sge>(), size_of::<Mr>()), (16, 48));
        assert_eq!(offset_of!(Mr, lkey), 36);
        assert_eq!(size_of::<QpInit>(), 64);
        assert_eq!(offset_of!(QpInit, max_send_wr), 32);
        assert_eq!(offset_of!(QpInit, qp_type), 52);
        let ops = offset_of!(Context, ops);
        assert_eq!(ops + offset_of!(ContextOps, poll_cq), 96);
        assert_eq!(ops + offset_of!(ContextOps, req_notify_cq), 104);
        assert_eq!(ops + offset_of!(ContextOps, post_send), 208);
        assert_eq!(ops + offset_of!(ContextOps, post_recv), 216);
        assert_eq!(size_of::<ConnParam>(), 24);
        assert_eq!(offset_of!(ConnParam, rnr_retry_count), 13);
        assert_eq!(offset_of!(ConnParam, qp_num), 16);
        assert_eq!(offset_of!(CmEvent, event), 16);
        assert_eq!(offset_of!(CmEvent, status), 20);
        assert_eq!(offset_of!(CmEvent, conn), 24);
        assert_eq!(offset_of!(CmId, qp), 24);
        assert_eq!(offset_of!(CompletionChannel, fd), 8);
    }
}
