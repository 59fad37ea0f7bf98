-- GPU 0: "gemm<1>" runs 1, 2 and 6 us (two of them in step 5), "norm" 1 us in step 6. GPU 1: "gemm<1>" runs 4 us.
INSERT INTO kernel_name (kernel_name_id, source_id, short_name, demangled_name, category, category_rule) VALUES
    (1, 1, 'gemm', 'void gemm<1>(int)', 'gemm', 'gemm|cublas'), (2, 1, 'mystery', 'mystery', 'other', NULL);
INSERT INTO gpu_activity (activity_id, source_id, kind, start_ns, end_ns, pid, device, stream, kernel_name_id) VALUES
    (1, 1, 'kernel', 0, 1000, 10, 0, 7, 1),
    (2, 1, 'kernel', 2000, 4000, 10, 0, 7, 1),
    (3, 1, 'kernel', 5000, 11000, 10, 0, 7, 1),
    (4, 1, 'kernel', 12000, 13000, 10, 0, 7, 2),
    (5, 1, 'kernel', 0, 4000, 10, 1, 7, 1),
    (6, 1, 'memcpy', 0, 9000, 10, 0, 7, NULL);
INSERT INTO gpu_attribution (activity_id, engine_id, step, method) VALUES
    (2, 1, 5, 'nvtx_forward'), (3, 1, 5, 'nvtx_forward'), (4, 1, 6, 'nvtx_forward');
