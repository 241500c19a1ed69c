//! Progress as one line per epoch, for pipes, logs and terminals that cannot do more.

use std::collections::HashMap;
use std::io::Write;
use std::time::Instant;

use burn::train::LearnerSummary;
use burn::train::metric::{MetricDefinition, MetricId, NumericEntry};
use burn::train::renderer::{
    EvaluationName, EvaluationProgress, MetricState, MetricsRenderer, MetricsRendererEvaluation,
    MetricsRendererTraining, ProgressType, TrainingProgress,
};

/// The mean of a metric over the batches of an epoch, weighted as burn-train weights it.
#[derive(Clone, Copy, Default)]
struct Mean {
    sum: f64,
    count: usize,
}

impl Mean {
    fn add(&mut self, entry: &NumericEntry) {
        let (value, count) = match *entry {
            NumericEntry::Value(value) => (value, 1),
            NumericEntry::Aggregated { aggregated_value, count } => (aggregated_value, count),
        };
        self.sum += value * count as f64;
        self.count += count;
    }
}

/// The means of one part of the data during one epoch, by metric.
type Means = HashMap<MetricId, Mean>;

/// Prints loss and accuracy of both parts at the end of each epoch.
pub(crate) struct CompactRenderer {
    names: HashMap<MetricId, String>,
    train: Means,
    test: Means,
    epoch_start: Instant,
}

impl CompactRenderer {
    pub(crate) fn new() -> Self {
        Self { names: HashMap::new(), train: Means::new(), test: Means::new(), epoch_start: Instant::now() }
    }

    /// NaN for a metric that has not been seen.
    fn mean(&self, means: &Means, name: &str) -> f64 {
        let found = means.iter().find(|(id, _)| self.names.get(id).is_some_and(|known| known == name));
        found.map_or(f64::NAN, |(_, mean)| mean.sum / mean.count as f64)
    }

    fn line(&self, epoch: usize, epochs: usize) -> String {
        let part = |means| (self.mean(means, "Loss"), self.mean(means, "Accuracy"));
        let ((train_loss, train_accuracy), (test_loss, test_accuracy)) =
            (part(&self.train), part(&self.test));
        format!(
            "epoch {epoch:>width$}/{epochs}  train loss {train_loss:.4} accuracy {train_accuracy:>5.1}%  \
             test loss {test_loss:.4} accuracy {test_accuracy:>5.1}%  {:.1} s",
            self.epoch_start.elapsed().as_secs_f64(),
            width = epochs.to_string().len(),
        )
    }
}

fn add(means: &mut Means, state: MetricState) {
    if let MetricState::Numeric(entry, number) = state {
        means.entry(entry.metric_id).or_default().add(&number);
    }
}

impl MetricsRendererTraining for CompactRenderer {
    fn update_train(&mut self, state: MetricState) {
        add(&mut self.train, state);
    }

    fn update_valid(&mut self, state: MetricState) {
        add(&mut self.test, state);
    }

    fn render_train(&mut self, _progress: TrainingProgress, _indicators: Vec<ProgressType>) {}

    /// An epoch ends with the last batch of its test images; burn-train tells a renderer in no other way.
    fn render_valid(&mut self, progress: TrainingProgress, _indicators: Vec<ProgressType>) {
        let Some(batch) = progress.progress else { return };
        if batch.items_processed < batch.items_total {
            return;
        }
        let epoch = progress.global_progress;
        // A closed pipe ends the display, not the training.
        let _ = writeln!(std::io::stdout(), "{}", self.line(epoch.items_processed, epoch.items_total));
        self.train.clear();
        self.test.clear();
        self.epoch_start = Instant::now();
    }

    fn on_train_end(&mut self, _summary: Option<LearnerSummary>) -> Result<(), Box<dyn std::error::Error>> {
        Ok(())
    }
}

impl MetricsRendererEvaluation for CompactRenderer {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}

    fn render_test(&mut self, _progress: EvaluationProgress, _indicators: Vec<ProgressType>) {}
}

impl MetricsRenderer for CompactRenderer {
    fn manual_close(&mut self) {}

    fn register_metric(&mut self, definition: MetricDefinition) {
        self.names.insert(definition.metric_id, definition.name);
    }
}
