"""Writes apps/options/testdata/training_arguments_dump.json: a TrainingArguments as Transformers writes it to a file.

Run from the repository's root with transformers and torch installed:
    python tests/golden/dump_training_arguments.py > apps/options/testdata/training_arguments_dump.json
"""

from transformers import TrainingArguments


def main():
    arguments = TrainingArguments(
        output_dir="out",
        do_train=True,
        do_eval=True,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        num_train_epochs=2,
        lr_scheduler_type="cosine_with_min_lr",
        lr_scheduler_kwargs={"min_lr": 1e-6},
        warmup_steps=0.1,
        label_smoothing_factor=0.1,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        load_best_model_at_end=True,
        metric_for_best_model="accuracy",
        seed=7,
        use_cpu=True,
    )
    print(arguments.to_json_string())


if __name__ == "__main__":
    main()
