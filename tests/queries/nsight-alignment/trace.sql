-- A profile aligned by clock marks, with the epoch as a check; of its three kernels one has a step from a range and one
-- from the time of its launch. A second profile has nothing to be aligned by.
INSERT INTO source VALUES (1, 'nsight', 'a.sqlite', '2025.3.2', '3.20.3', 1000), (2, 'torch', 'b.json', NULL, '1', NULL);
INSERT INTO alignment VALUES
    (1, 'utc_epoch', false, 1000, 7, 0, 1, 5000, 5000, 5000),
    (1, 'clock_marks', true, 6000, 7, 12.5, 60, 200, 900, 1500),
    (2, 'none', true, 0, 0, 0, 0, NULL, NULL, NULL);
INSERT INTO kernel_name (kernel_name_id, source_id, short_name, demangled_name, category) VALUES (1, 1, 'f', 'f', 'other');
INSERT INTO gpu_activity (activity_id, source_id, kind, start_ns, end_ns, kernel_name_id) VALUES
    (1, 1, 'kernel', 0, 1, 1), (2, 1, 'kernel', 2, 3, 1), (3, 1, 'kernel', 4, 5, 1);
INSERT INTO gpu_attribution (activity_id, step, method) VALUES
    (1, 1, 'nvtx_forward'), (2, 1, 'after_range'), (3, NULL, NULL);
