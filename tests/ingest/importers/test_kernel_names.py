"""Categories of kernels: by function and template arguments, never by the namespace or by a parameter's type."""

from __future__ import annotations

import pytest

from kvtrace.ingest.gpu.names import classify, short_name

FLASH = (
    "void cutlass::device_kernel<flash::enable_sm90<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<2, "
    "cute::tuple<int>>>>>(T1::Params)"
)

COMPARED = (
    "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
    "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*, long)"
)


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("void fbgemm_gpu::split_embedding_codegen_forward_unweighted_kernel<float>(int)", "other"),
        ("void fbgemm_gpu::quantize_fp8_per_row_kernel<c10::BFloat16>(int)", "other"),
        ("void cutlass::reference::device::BlockForEach<float>(cutlass::gemm::GemmCoord)", "other"),
        ("void vllm::attention::prepare(int)", "other"),
        ("void f<int>(cublasGemmParams)", "other"),
        ("void cutlass::Kernel2<cutlass_80_tensorop_s16816gemm_bf16_256x128_32x3_tn_align8>(T1::Params)", "gemm"),
        ("void cutlass::device_kernel<cutlass::gemm::kernel::GemmUniversal<int>>(T1::Params)", "gemm"),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>(cublasLtParams)", "gemm"),
        ("std::enable_if<!T7, void>::type internal::gemvx::kernel<int, float, cublasGemvParamsEx<int>>(T13)", "gemm"),
        ("Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x192x64_MI16x16x1_SN_LDSB1", "gemm"),
        ("bmm_MxE4m3_MxE2m1MxE4m3_Fp32_t128x16x256u2_s3_transOut_tma_clmp_swiGlu_dynBatch_sm100f", "gemm"),
        (COMPARED, "norm_activation"),
        ("nvjet_sm90_tst_128x8_64x12_2x1_v_bz_splitK_TNT", "gemm"),
        (FLASH, "attention"),
        ("void flash::attn_b<int>(int)", "attention"),
        ("attn_b", "attention"),
        ("void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16>(T1 *)", "kv_write"),
        ("void at::native::mbtopk::computeBlockDigitCounts<c10::BFloat16>(at::cuda::TensorInfo<T1, T2>)", "sampling"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<int>(T1 *)", "copy"),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int, T2)", "copy"),
        ("void vllm::act_and_mul_kernel<c10::BFloat16>(T1 *)", "norm_activation"),
    ],
)
def test_the_category(name: str, category: str) -> None:
    assert classify(name).category.name == category


def test_of_attention_kernels_those_that_attend_play_a_part_in_a_layer() -> None:
    role = classify(FLASH).role
    assert role is not None
    assert role.name == "attention"
    assert classify("void flash::prepare_varlen_num_blocks_kernel<1>(int)").role is None


@pytest.mark.parametrize(
    ("demangled", "short"),
    [
        (COMPARED, "fused_add_rms_norm_kernel"),
        ("typename std::enable_if<((8)<(9)), void>::type f<int>(int)", "f"),
        ("void at::native::(anonymous namespace)::CatArrayBatchedCopy<int>(T1 *)", "CatArrayBatchedCopy"),
        ("void (anonymous namespace)::store<2048l>(Params)", "store"),
        ("void f<(anonymous namespace)::X, void (*)(std::pair<int, int>)>(int)", "f"),
        ("std::enable_if<cut", "enable_if"),
        ("a kernel of MTIA", "a kernel of MTIA"),
    ],
)
def test_the_short_name_is_the_functions(demangled: str, short: str) -> None:
    assert short_name(demangled) == short
